"""The matrix of kinds of scripts: what is reached, applied and resumed, by running each really.

    python -m bench.matrix [--kinds TEXT] [--no-stops] [--jobs N] [--markdown]

Each kind is run as it is and in the environment of a pod of the worker's image, then stopped by a
SIGTERM to its first process at the twelfth step, and started again. `result` compares what both
print. `skipped` has the settings that were refused and why; what nearly all kinds refuse for one
reason is listed once, under the table. On the CPU.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.matrix.kinds import KINDS
from bench.matrix.runs import COLUMNS, row
from bench.refusals import fill_skipped
from bench.table import format_markdown, format_table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.matrix", description=__doc__)
    parser.add_argument("--kinds", default="", help="only those whose name has this in it")
    parser.add_argument("--no-stops", action="store_true", help="without stopping and resuming")
    parser.add_argument("--jobs", type=int, default=1, help="kinds that run at a time")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    options = parser.parse_args(arguments)
    kinds = {name: kind for name, kind in KINDS.items() if options.kinds in name}
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:

        def measure(name: str) -> dict[str, Any]:
            place = Path(folder) / str(list(kinds).index(name))
            found = row(name, kinds[name], place, stops=not options.no_stops)
            print(f"{name}: {found['injected']}", file=sys.stderr, flush=True)
            return found

        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(measure, kinds))
    legend = fill_skipped(rows, "kind")
    print(format_markdown(rows, COLUMNS) if options.markdown else format_table(rows, COLUMNS))
    print("\n".join(["", *legend]))
    print_result(rows, bench="matrix")
    return 0


if __name__ == "__main__":
    sys.exit(main())
