"""The published curves: allocation percent by arrived percent, per trace, policy and seed."""

import csv
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.openb.cluster import ARRIVED_PERCENT_MAX

FILE = "published_allo.csv.gz"


def read_published(directory: Path) -> dict[tuple[str, str, int], NDArray[np.float64]]:
    """Curves by (trace, policy, seed); empty where the folder has no published file."""
    path = directory / FILE
    if not path.exists():
        return {}
    with gzip.open(path, "rt", newline="") as file:
        return {
            (
                row["workload"].removeprefix("openb_pod_list_"),
                row["sc_policy"].split("-", 1)[-1],
                int(row["seed"]),
            ): np.array([float(row[str(at)]) for at in range(ARRIVED_PERCENT_MAX + 1)])
            for row in csv.DictReader(file)
        }
