"""Gangs of fixed size and batch on 16 nodes x 4 T4 with measured step times (Pollux, OSDI'21).

    python -m bench.gangs --data DIR [--workloads workload-1,workload-2,...]

DIR holds `workloads/<name>.csv` and `throughput_traces.tar.gz` (or it unpacked, as `traces/`).
Simulation and scheduling interval 60 s; every change of a job's GPUs costs 30 s of no progress.
"""

import argparse
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.pollux.application import Application, read_applications
from bench.pollux.cluster import Policy, average_jct_seconds, read_workload, simulate
from bench.pollux.ours import GangScheduler
from bench.pollux.tiresias import Tiresias
from bench.table import format_table

WORKLOADS = "workload-1,workload-2,workload-3,workload-4"
ARCHIVE = "throughput_traces.tar.gz"
COLUMNS = ("trace", "policy", "source", "average_jct_seconds", "average_jct_hours")
MEAN = "mean"

# Average completion time in seconds, from the summaries published with the simulator. Pollux and
# Optimus change the number of GPUs of running jobs, Pollux also their batch size.
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "Pollux (elastic)": {
        "workload-1": 2089,
        "workload-2": 3323,
        "workload-3": 2188,
        "workload-4": 2721,
    },
    "Tiresias+Tuned": {
        "workload-1": 2474,
        "workload-2": 5145,
        "workload-3": 3876,
        "workload-4": 3280,
    },
    "Optimus+Oracle (elastic)": {
        "workload-1": 4087,
        "workload-2": 6914,
        "workload-3": 3944,
        "workload-4": 5968,
    },
}
PUBLISHED_MEAN_HOURS = {"Tiresias+Tuned": 1.026}

POLICIES: Mapping[str, tuple[str, Callable[[], Policy], str]] = {
    "Tiresias+Tuned": ("reproduced", Tiresias, "step times between measured points interpolated"),
    "gpujob": ("ours", GangScheduler, "lengths from measured pace and finished runs, no oracle"),
    "gpujob lengths unknown": (
        "ours",
        lambda: GangScheduler(estimates=False),
        "jobs do not say how much is left, as with Tiresias",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.gangs", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of workloads and traces")
    parser.add_argument("--workloads", default=WORKLOADS, help="comma list of file names")
    options = parser.parse_args(arguments)
    workloads = options.workloads.split(",")
    with ExitStack() as stack:
        applications = read_applications(_traces(options.data, stack))
    results = _published(workloads)
    for workload in workloads:
        path = options.data / "workloads" / f"{workload}.csv"
        results += [_run(path, name, applications) for name in POLICIES]
    results += _means(results, workloads)
    results.sort(key=lambda row: [*workloads, MEAN].index(row["trace"]))
    print(format_table(results, COLUMNS))
    print_result(results, bench="gangs", targets=_targets(results))
    return 0


def _traces(data: Path, stack: ExitStack) -> Path:
    """The folder of measured traces, unpacked to a temporary one where needed."""
    if (data / "traces").is_dir():
        return data / "traces"
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangs-")))
    with tarfile.open(data / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "traces"


def _run(path: Path, name: str, applications: Mapping[str, Application]) -> dict[str, Any]:
    source, policy, note = POLICIES[name]
    started = time.perf_counter()
    jobs = read_workload(path, applications)
    simulate(jobs, policy())
    seconds = time.perf_counter() - started
    print(f"{path.name} {name}: {len(jobs)} jobs in {seconds:.1f} s", file=sys.stderr)
    row = _row(path.stem, name, source, average_jct_seconds(jobs))
    starts = sum(job.restarts for job in jobs)
    return {**row, "starts": starts, "note": note}


def _published(workloads: Sequence[str]) -> list[dict[str, Any]]:
    return [
        _row(workload, policy, "published", figures[workload])
        for workload in workloads
        for policy, figures in PUBLISHED.items()
        if workload in figures
    ]


def _means(results: Sequence[Mapping[str, Any]], workloads: Sequence[str]) -> list[dict[str, Any]]:
    """The mean of each policy that has a row for every workload."""
    kinds = dict.fromkeys((row["policy"], row["source"]) for row in results)
    means: list[dict[str, Any]] = []
    for policy, source in kinds:
        figures = [
            row["average_jct_seconds"]
            for row in results
            if (row["policy"], row["source"]) == (policy, source)
        ]
        if len(figures) == len(workloads):
            means.append(_row(MEAN, policy, source, sum(figures) / len(figures)))
    return means


def _row(trace: str, policy: str, source: str, seconds: float) -> dict[str, Any]:
    return {
        "trace": trace,
        "policy": policy,
        "source": source,
        "average_jct_seconds": round(seconds, 3),
        "average_jct_hours": round(seconds / 3600, 4),
    }


def _targets(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    means = {
        (row["policy"], row["source"]): row["average_jct_hours"]
        for row in results
        if row["trace"] == MEAN
    }
    ours, limit = means["gpujob", "ours"], PUBLISHED_MEAN_HOURS["Tiresias+Tuned"]
    return {
        "mean_hours": ours,
        "published_tiresias_mean_hours": limit,
        "below": ours < limit,
    }


if __name__ == "__main__":
    sys.exit(main())
