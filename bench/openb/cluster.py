"""The state of the simulated cluster and the loop of arrivals, the same for every policy.

Pods arrive one at a time; nothing ends, nothing is tried again: a pod that fits nowhere is
dropped and still counts as arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.openb.trace import GPU_MILLI, GPUS_PER_NODE_MAX, Arrivals, Integers, Nodes, PodClass

PODS_PER_NODE_MAX = 1001
# A GPU that is not there; below any request, and above it in no sum (see `gpu_total`).
ABSENT = -1
ARRIVED_PERCENT_MAX = 130


@dataclass(slots=True)
class Cluster:
    """Free resources of every node, rows in tie-break order. `step` counts placements."""

    nodes: Nodes
    cpu_free: Integers
    memory_free: Integers
    gpu_free: Integers
    gpu_total: Integers
    pods: Integers
    changed_at: Integers
    step: int = 0

    @classmethod
    def empty(cls, nodes: Nodes) -> "Cluster":
        present = np.arange(GPUS_PER_NODE_MAX) < nodes.gpus[:, None]
        return cls(
            nodes=nodes,
            cpu_free=nodes.cpu_milli.copy(),
            memory_free=nodes.memory_mib.copy(),
            gpu_free=np.where(present, GPU_MILLI, ABSENT),
            gpu_total=nodes.gpus * GPU_MILLI,
            pods=np.zeros_like(nodes.gpus),
            changed_at=np.zeros_like(nodes.gpus),
        )

    def take(self, row: int, gpus: Sequence[int], pod: PodClass) -> None:
        """Gives a pod its resources. The policy has checked that they are free."""
        self.step += 1
        self.cpu_free[row] -= pod.cpu_milli
        self.memory_free[row] -= pod.memory_mib
        for gpu in gpus:
            self.gpu_free[row, gpu] -= pod.gpu_milli
        self.gpu_total[row] -= pod.demand_milli
        self.pods[row] += 1
        self.changed_at[row] = self.step
        assert self.cpu_free[row] >= 0
        assert self.memory_free[row] >= 0
        assert all(self.gpu_free[row, gpu] >= 0 for gpu in gpus)

    def give(self, row: int, gpus: Sequence[int], pod: PodClass) -> None:
        """Takes a pod's resources back."""
        self.step += 1
        self.cpu_free[row] += pod.cpu_milli
        self.memory_free[row] += pod.memory_mib
        for gpu in gpus:
            self.gpu_free[row, gpu] += pod.gpu_milli
        self.gpu_total[row] += pod.demand_milli
        self.pods[row] -= 1
        self.changed_at[row] = self.step
        assert self.cpu_free[row] <= self.nodes.cpu_milli[row]
        assert self.memory_free[row] <= self.nodes.memory_mib[row]
        assert all(self.gpu_free[row, gpu] <= GPU_MILLI for gpu in gpus)

    def fits(self, rows: Integers, pod: PodClass) -> NDArray[np.bool_]:
        """Which of the rows can take the pod, GPU models aside."""
        fits = (
            (self.cpu_free[rows] >= pod.cpu_milli)
            & (self.memory_free[rows] >= pod.memory_mib)
            & (self.pods[rows] < PODS_PER_NODE_MAX)
        )
        if pod.num_gpu:
            enough = self.gpu_free[rows] >= pod.gpu_milli
            fits &= enough.sum(axis=1) >= pod.num_gpu
        return fits


class Policy(Protocol):
    """Chooses a node's row and its GPUs, or None where the pod fits nowhere."""

    def place(self, cluster: Cluster, class_number: int) -> tuple[int, Sequence[int]] | None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Allocation percent by arrived percent (index 0 to 130), and how many pods were dropped."""

    allocation_percent: NDArray[np.float64]
    failed: int


def simulate(arrivals: Arrivals, classes: Sequence[PodClass], policy: Policy) -> Run:
    """Runs one seed through a policy."""
    cluster = Cluster.empty(arrivals.nodes)
    capacity = arrivals.nodes.capacity_milli
    arrived = used = failed = 0
    points = np.zeros((len(arrivals.pod_class), 2))
    for index, class_number in enumerate(arrivals.pod_class.tolist()):
        pod = classes[class_number]
        arrived += pod.demand_milli
        placed = policy.place(cluster, class_number)
        if placed is None:
            failed += 1
        else:
            cluster.take(placed[0], placed[1], pod)
            used += pod.demand_milli
        points[index] = (100 * arrived / capacity, round(100 * used / capacity, 2))
    return Run(allocation_percent=curve(points), failed=failed)


def curve(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean allocation in every bin round(arrived %); an empty bin takes its neighbours' mean."""
    size = ARRIVED_PERCENT_MAX + 1
    bins = np.rint(points[:, 0]).astype(np.int64)
    kept = bins < size
    counts = np.bincount(bins[kept], minlength=size)
    sums = np.bincount(bins[kept], weights=points[kept, 1], minlength=size)
    means = np.full(size, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    for empty in np.flatnonzero(counts == 0):
        near = means[max(0, empty - 1) : empty + 2]
        if not np.isnan(near).all():
            means[empty] = np.nanmean(near)
    return means
