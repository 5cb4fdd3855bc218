"""Reads openb node and pod lists, arrival orders and published curves from a data folder.

Columns of nodes: sn, cpu_milli, memory_mib, gpu, model. Of pods: name, cpu_milli, memory_mib,
num_gpu, gpu_milli and, where the trace has it, gpu_spec (`A|B`: models allowed).
`<trace>.npz` holds, per seed, `seq<seed>` (row of the pod list, in order of arrival) and
`rank<seed>` (the tie-break rank of every row of the node list).
"""

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

GPU_MILLI = 1000
GPUS_PER_NODE_MAX = 8
NODE_LIST = "openb_node_list_gpu_node.csv.gz"

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class PodClass:
    """What a pod asks for. `gpu_milli` is thousandths of one GPU, for each of `num_gpu` GPUs."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    gpu_spec: str

    @property
    def models(self) -> frozenset[str]:
        """GPU models that will do; empty: any."""
        return frozenset(self.gpu_spec.split("|")) if self.gpu_spec else frozenset()

    @property
    def shares(self) -> bool:
        """Asks for a part of one GPU."""
        return self.num_gpu == 1 and self.gpu_milli < GPU_MILLI

    @property
    def demand_milli(self) -> int:
        return self.num_gpu * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes in the order of tie-breaks: the first row has the smallest rank."""

    names: tuple[str, ...]
    cpu_milli: Integers
    memory_mib: Integers
    gpus: Integers
    models: tuple[str, ...]

    @property
    def capacity_milli(self) -> int:
        return int(self.gpus.sum()) * GPU_MILLI

    def ranked(self, rank: Integers) -> "Nodes":
        """The same nodes with the smallest rank first."""
        order = np.argsort(rank, kind="stable")
        return Nodes(
            names=tuple(self.names[row] for row in order),
            cpu_milli=self.cpu_milli[order],
            memory_mib=self.memory_mib[order],
            gpus=self.gpus[order],
            models=tuple(self.models[row] for row in order),
        )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One seed's run: nodes in tie-break order and the class of every pod as it arrives."""

    nodes: Nodes
    pod_class: Integers


@dataclass(frozen=True, slots=True)
class Trace:
    """A pod list by classes: `classes[of_pod[row]]` is what the pod of that row asks for."""

    name: str
    nodes: Nodes
    classes: tuple[PodClass, ...]
    of_pod: Integers
    orders: Mapping[str, NDArray[np.uint16]]

    def arrivals(self, seed: int) -> Arrivals:
        """Raises KeyError where the trace has no order for this seed."""
        rank = self.orders[f"rank{seed}"].astype(np.int64)
        rows = self.orders[f"seq{seed}"].astype(np.int64)
        return Arrivals(nodes=self.nodes.ranked(rank), pod_class=self.of_pod[rows])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def _integers(values: Iterable[str]) -> Integers:
    return np.array([int(value) for value in values], dtype=np.int64)


def read_nodes(directory: Path) -> Nodes:
    """Every node of the list, in the list's own order."""
    rows = list(_rows(directory / NODE_LIST))
    return Nodes(
        names=tuple(row["sn"] for row in rows),
        cpu_milli=_integers(row["cpu_milli"] for row in rows),
        memory_mib=_integers(row["memory_mib"] for row in rows),
        gpus=_integers(row["gpu"] for row in rows),
        models=tuple(row["model"] for row in rows),
    )


def read_trace(directory: Path, name: str) -> Trace:
    """Reads `openb_pod_list_<name>.csv.gz` and `<name>.npz`."""
    asked = [
        PodClass(
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            num_gpu=int(row["num_gpu"]),
            gpu_milli=int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            gpu_spec=row.get("gpu_spec") or "",
        )
        for row in _rows(directory / f"openb_pod_list_{name}.csv.gz")
    ]
    classes = tuple(sorted(set(asked)))
    number = {pod_class: index for index, pod_class in enumerate(classes)}
    with np.load(directory / f"{name}.npz") as orders:
        return Trace(
            name=name,
            nodes=read_nodes(directory),
            classes=classes,
            of_pod=np.array([number[pod] for pod in asked], dtype=np.int64),
            orders={key: orders[key] for key in orders.files},
        )


def trace_names(directory: Path) -> tuple[str, ...]:
    """Traces of a folder that have both a pod list and arrival orders."""
    return tuple(
        path.stem
        for path in sorted(directory.glob("*.npz"))
        if (directory / f"openb_pod_list_{path.stem}.csv.gz").exists()
    )
