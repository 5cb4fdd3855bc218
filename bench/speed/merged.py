"""Several runs of `bench.gpu` on one device as one: what one run of eight minutes cannot hold."""

from collections.abc import Sequence
from typing import Any

from bench import worker

PARTS = ("results", "overhead", "tight")
# What every row has that was measured; others say why they were not.
FIGURES = ("speedup", "ratio")
# Figures of two devices, or of two versions, are no one table.
ALIKE = ("device", "device_name", "size", "threads", "driver", "cuda", "cudnn", "versions")


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result with the rows of all runs. Of a workload and a way that two runs have, the later
    run's row counts, unless the earlier one holds figures that it lacks, or is of a search by hand
    that compiled and the later one did not. Raises `ValueError` where the runs are not of one
    device.
    """
    if not runs:
        raise ValueError("nothing to merge")
    for run in runs[1:]:
        for name in ALIKE:
            if run.get(name) != runs[0].get(name):
                raise ValueError(f"{name} differs: {runs[0].get(name)} and {run.get(name)}")
    found = {**runs[-1], **{part: _rows(runs, part) for part in PARTS}}
    found["date"] = max(run["date"] for run in runs)
    found["seconds"] = sum(run["seconds"] for run in runs)
    found["summary"] = worker.summary(found["results"])
    limited = {row["workload"] for row in found["tight"]}
    left_out = dict.fromkeys(line for run in runs for line in run["left_out"])
    found["left_out"] = [line for line in left_out if line.split(" ")[0] not in limited]
    return found


def _rows(runs: Sequence[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for run in runs for row in run[part]):
        name = (row["workload"], row["way"])
        if name not in found or _worth(row) >= _worth(found[name]):
            found[name] = row
    return list(found.values())


def _worth(row: dict[str, Any]) -> tuple[int, bool]:
    """0 without figures, 1 for those of a program that ended early, 2 for all of them; then whether
    the search compiled. Rows from before the search said so are taken for compiled ones.
    """
    compiles = bool(row.get("compiles", True))
    if not any(name in row for name in FIGURES):
        return 0, compiles
    return (1 if row.get("note") else 2), compiles
