"""Queueing and sharing on Philly-derived traces with measured profiles (Muri, SIGCOMM'22).

    python -m bench.sharing --data DIR [--traces trace1,trace3,trace1_pr,trace3_pr]

First SRTF, SRSF, Tiresias and AntMan are reproduced with the published rules; then the product's
own order and sharing rule runs under the same restart overheads. Muri itself is quoted: its gain
needs iterations that are interleaved by its own executor, which the product does not do.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.muri.antman import AntMan
from bench.muri.ours import Setup, Sharing
from bench.muri.published import read_published
from bench.muri.shortest import simulate_shortest
from bench.muri.tiresias import simulate_tiresias
from bench.muri.trace import Outcome, TraceJob, outcome, read_trace
from bench.table import format_table

TRACES = "trace1,trace3,trace1_pr,trace3_pr"
COLUMNS = ("policy", "source", "average_jct_seconds", "makespan_seconds", "p99_jct_seconds")

Policy = Callable[[list[TraceJob]], None]

PEERS: Mapping[str, Policy] = {
    "SRTF": lambda jobs: simulate_shortest(jobs, by_gpu_time=False),
    "SRSF": lambda jobs: simulate_shortest(jobs, by_gpu_time=True),
    "Tiresias": simulate_tiresias,
    "AntMan": lambda jobs: AntMan().simulate(jobs),
}
# Mean sum of relative speeds of pairs measured on V100s (Gavel, OSDI'20) over the published law's.
HARSH_FACTOR = 1.31 / 1.58
OURS: Mapping[str, tuple[Setup, str]] = {
    "gpujob": (Setup(), "pairs, a step at most 30 % longer; steps left x measured step time"),
    "gpujob slowdown<=10%": (Setup(max_slowdown_percent=10), "the product's default limit"),
    "gpujob harsh": (
        Setup(speed_factor=HARSH_FACTOR),
        f"every pair runs at {HARSH_FACTOR:.2f} of the predicted speeds",
    ),
    "gpujob lengths unknown": (
        Setup(lengths_known=False),
        "jobs do not say how many steps they have, as with Tiresias and AntMan",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.sharing", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--traces", default=TRACES, help="comma list of file names without .csv.gz")
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for trace in options.traces.split(","):
        rows = _run(options.data, trace)
        results += rows
        _print_table(trace, rows)
    print_result(results, bench="sharing", targets=_targets(results))
    return 0


def _run(folder: Path, trace: str) -> list[dict[str, Any]]:
    path = folder / f"{trace}.csv.gz"
    published = read_published(folder, trace)
    rows = [_row(trace, row.policy, "published", row.outcome) for row in published]
    for name, policy in PEERS.items():
        rows.append(_row(trace, name, "reproduced", _simulate(path, name, policy)))
    for name, (setup, note) in OURS.items():
        simulated = _simulate(path, name, Sharing(setup).simulate)
        rows.append({**_row(trace, name, "ours", simulated), "note": note})
    return rows


def _simulate(path: Path, name: str, policy: Policy) -> Outcome:
    started = time.perf_counter()
    jobs = read_trace(path)
    policy(jobs)
    seconds = time.perf_counter() - started
    print(f"{path.name} {name}: {len(jobs)} jobs in {seconds:.1f} s", file=sys.stderr)
    return outcome(jobs)


def _row(trace: str, policy: str, source: str, found: Outcome) -> dict[str, Any]:
    return {
        "trace": trace,
        "policy": policy,
        "source": source,
        "average_jct_seconds": round(found.average_jct_seconds, 3),
        "makespan_seconds": round(found.makespan_seconds, 3),
        "p99_jct_seconds": round(found.p99_jct_seconds, 3),
    }


def _print_table(trace: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{trace}: 8 nodes x 8 GPUs; seconds; sorted by average completion time")
    ordered = sorted(rows, key=lambda row: row["average_jct_seconds"])
    print(format_table(ordered, COLUMNS), flush=True)


def _targets(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What must hold on each trace, and whether it does."""
    found: list[dict[str, Any]] = []
    for trace in dict.fromkeys(row["trace"] for row in results):
        figures = {
            (row["policy"], row["source"]): row["average_jct_seconds"]
            for row in results
            if row["trace"] == trace
        }
        ours = figures["gpujob", "ours"]
        target: dict[str, Any] = {"trace": trace}
        for policy in PEERS:
            reproduced = figures[policy, "reproduced"]
            target[f"{policy} off by seconds"] = _difference(
                reproduced, figures.get((policy, "published"))
            )
            target[f"below {policy}"] = ours < reproduced
        found.append(target)
    return found


def _difference(reproduced: float, published: float | None) -> float | None:
    return None if published is None else round(abs(reproduced - published), 3)


if __name__ == "__main__":
    sys.exit(main())
