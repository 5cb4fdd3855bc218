"""A tiny data folder in the openb format, for tests of the placement benchmark."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
NODES = (
    ("n0", "32000", "131072", "4", "G2"),
    ("n1", "32000", "131072", "4", "G2"),
    ("n2", "16000", "65536", "2", "T4"),
)
# (cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec) and how often.
PODS = (
    (("4000", "8192", "1", "470", ""), 8),
    (("4000", "8192", "1", "810", ""), 4),
    (("4000", "8192", "1", "1000", ""), 6),
    (("2000", "4096", "1", "160", "T4"), 3),
    (("8000", "8192", "2", "1000", "G2|G3"), 2),
    (("8000", "8192", "0", "0", ""), 3),
)


def write_openb_folder(
    directory: Path, name: str = "tiny", seeds: Sequence[int] = (42, 43), *, spec: bool = True
) -> None:
    """Node list, pod list and orders of arrival; `spec=False` leaves the model column out."""
    _write(
        directory / "openb_node_list_gpu_node.csv.gz",
        ("sn", "cpu_milli", "memory_mib", "gpu", "model"),
        NODES,
    )
    pods = [
        (f"p{number}-{copy}", *fields)
        for number, (fields, n) in enumerate(PODS)
        for copy in range(n)
    ]
    columns = POD_COLUMNS if spec else POD_COLUMNS[:-1]
    rows = [pod if spec else pod[:-1] for pod in pods]
    _write(directory / f"openb_pod_list_{name}.csv.gz", columns, rows)
    orders: dict[str, np.ndarray] = {}
    for seed in seeds:
        random = np.random.default_rng(seed)
        orders[f"seq{seed}"] = random.permutation(len(pods)).astype(np.uint16)
        orders[f"rank{seed}"] = random.permutation(len(NODES)).astype(np.uint16)
    np.savez(directory / f"{name}.npz", **orders)  # pyright: ignore[reportArgumentType]


def write_published(directory: Path, name: str, policy: str, seed: int, value: float) -> None:
    """A published curve that is the same at every percent."""
    columns = ("workload", "sc_policy", "tune", "seed", "total_gpus", *map(str, range(131)))
    row = (f"openb_pod_list_{name}", f"06-{policy}", "1.3", str(seed), "10", *[str(value)] * 131)
    _write(directory / "published_allo.csv.gz", columns, [row])


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
