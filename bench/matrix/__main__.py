"""The matrix of kinds of scripts: what is reached, applied and resumed, by running each really.

    python -m bench.matrix [--kinds TEXT] [--no-stops] [--markdown]

Each kind is run as it is and in the environment of a pod of the worker's image, then stopped by a
SIGTERM to its first process at the twelfth step, and started again. `result` compares what both
print. On the CPU.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.machine import print_result
from bench.matrix.kinds import KINDS
from bench.matrix.runs import COLUMNS, row
from bench.table import format_table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.matrix", description=__doc__)
    parser.add_argument("--kinds", default="", help="only those whose name has this in it")
    parser.add_argument("--no-stops", action="store_true", help="without stopping and resuming")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    options = parser.parse_args(arguments)
    rows: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        for name, kind in KINDS.items():
            if options.kinds not in name:
                continue
            place = Path(folder) / str(len(rows))
            rows.append(row(name, kind, place, stops=not options.no_stops))
            print(f"{name}: {rows[-1]['injected']}", file=sys.stderr, flush=True)
    print(_markdown(rows) if options.markdown else format_table(rows, COLUMNS))
    print_result(rows, bench="matrix")
    return 0


def _markdown(rows: Sequence[dict[str, str]]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(found[name] for name in COLUMNS)} |" for found in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
