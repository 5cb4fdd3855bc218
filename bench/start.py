"""What the hook costs a Python process that trains nothing: its start with and without, in turns.

    python -m bench.start [--starts 60]

Milliseconds of processor time, the median over all starts; others on the machine are not in it. The
hook imports the same few modules each time; `tests/worker/launch/test_startup_hook.py` counts them.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.machine import print_result
from bench.table import format_table
from gpujob_worker.launch.command import HOOK_FOLDER

COLUMNS = ("way", "median_milliseconds", "least_milliseconds", "more_milliseconds")
STARTS_MAX = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.start", description=__doc__)
    parser.add_argument("--starts", type=int, default=60, help=f"of each way, at most {STARTS_MAX}")
    starts = min(parser.parse_args(arguments).starts, STARTS_MAX)
    ways = {"without": {}, "with": {"PYTHONPATH": str(HOOK_FOLDER)}}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(starts):
        for name, variables in ways.items():
            taken[name].append(start_milliseconds(variables))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    rows = [
        {
            "way": name,
            "median_milliseconds": round(medians[name], 2),
            "least_milliseconds": round(min(values), 2),
            "more_milliseconds": round(medians[name] - medians["without"], 2),
        }
        for name, values in taken.items()
    ]
    print(format_table(rows, COLUMNS))
    print_result(rows, bench="start", starts=starts)
    return 0


def start_milliseconds(variables: dict[str, str]) -> float:
    """Processor time of one process that does nothing."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("GPUJOB", "PYTHON"))}
    before = _children_seconds()
    subprocess.run([sys.executable, "-c", "pass"], env={**given, **variables}, check=True)
    return 1000 * (_children_seconds() - before)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
