"""Public training scripts as they are and with the worker: is anything noticed?

    python -m bench.scripts --data FOLDER [--python PATH] [--scripts TEXT] [--jobs N] [--markdown]
                            [--settings JSON]

FOLDER has checkouts of the repositories that `bench/scripts/catalogue.py` names (`--list` prints
them); a script whose repository is missing is left out. The data that scripts read are made up.
Each script is run on the CPU as it is, then in the environment of a pod of the worker's image:
once with `optimize.mode: Recommend`, where everything is measured and nothing applied, and once as
a job is by default. `measured` and `result` compare what is printed, without times: `identical`, or
`close` where the last loss that is printed is within 2 %. `skipped` has the settings that were
refused and why; what nearly all scripts refuse for one reason is listed once, under the table.

By default a job gets what a measurement finds faster, which on a CPU is hardly ever bfloat16. With
`--settings '{"precision":"bfloat16"}'` both runs are asked for it, and it is in force where it is
safe.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.hooked import packages_in_one_folder
from bench.machine import print_result
from bench.refusals import fill_skipped
from bench.scripts.catalogue import SCRIPTS, Script
from bench.scripts.runs import COLUMNS, Ground, interpreter, row
from bench.table import format_markdown, format_table
from gpujob_api.settings import Settings

SETTINGS = 'asked for in both runs with the worker, as in GPUJOB_SETTINGS: {"compile":"On"}'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.scripts", description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder with the checkouts")
    parser.add_argument("--python", type=Path, help="an interpreter that has what scripts import")
    parser.add_argument("--scripts", default="", help="only those whose name has this in it")
    parser.add_argument("--list", action="store_true", help="print repositories and leave")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    parser.add_argument("--jobs", type=int, default=1, help="scripts that run at a time")
    parser.add_argument("--settings", type=_settings, default={}, help=SETTINGS, metavar="JSON")
    parser.add_argument("--keep", type=Path, help="where runs are kept (default: nowhere)")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(sorted({script.repository for script in SCRIPTS.values()})))
        return 0
    if options.data is None or not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder with checkouts; --list says of what")
    with tempfile.TemporaryDirectory(prefix="scripts-") as folder:
        rows = _rows(options, options.keep or Path(folder))
    legend = fill_skipped(rows, "script")
    print(format_markdown(rows, COLUMNS) if options.markdown else format_table(rows, COLUMNS))
    print("\n".join(["", *legend]))
    print_result(rows, bench="scripts", settings=options.settings)
    return 0


def _settings(text: str) -> dict[str, Any]:
    try:
        Settings.from_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return json.loads(text)


def _rows(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    data, folder = options.data.resolve(), folder.resolve()
    hook = packages_in_one_folder(folder / "packages")
    ground = Ground(data, interpreter(options.python), hook, options.settings)
    wanted: dict[str, Script] = {}
    for name, script in SCRIPTS.items():
        if (data / script.checkout).is_dir():
            wanted |= {name: script} if options.scripts in name else {}
        else:
            print(f"{name}: no checkout of {script.repository}", file=sys.stderr)

    def measure(name: str) -> dict[str, Any]:
        found = row(name, wanted[name], ground, folder / name.replace(" ", "-"))
        print(f"{name}: {found['result']}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(measure, wanted))


if __name__ == "__main__":
    sys.exit(main())
