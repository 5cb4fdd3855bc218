"""`python -m tests.worker.resume.shapes --seeds 0-1999`: stopped and resumed scripts.

Each seed is a script of another shape. It is run plain, and with the worker, where it is stopped up
to three times. It has to end as the plain run did, or the worker has to have reported before the
first stop that it begins anew. Prints each seed that fails; the last line is the count as JSON.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.worker.resume.shapes.generator import generate
from tests.worker.resume.shapes.tally import Tally, machine
from tests.worker.resume.shapes.workshop import Workshop, failure


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    print(f"seeds {seeds.start}-{seeds.stop - 1} on {machine()}", flush=True)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="shapes-") as folder:
        kept = options.keep or Path(folder)
        workshop = Workshop(
            kept, options.jobs, real=options.real, keeps_all=options.keep is not None
        )
        for course in workshop.courses(map(generate, seeds)):
            tally.add(course)
            if course.verdict.is_failure:
                print(failure(course), flush=True)
            if options.every and tally.count % options.every == 0:
                print(f"... {tally.line()}", flush=True)
        print(tally.text())
        print(json.dumps({"seeds": [seeds.start, seeds.stop - 1], **tally.numbers()}))
    return 1 if tally.failures else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.worker.resume.shapes", description=__doc__
    )
    parser.add_argument("--seeds", default="0-99", help="one seed, or the first and the last")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--jobs", type=int, default=2, help="how many scripts at a time")
    parser.add_argument("--real", action="store_true", help="each run in a process of its own")
    parser.add_argument("--every", type=int, default=100, help="tell how far it is; 0: never")
    parser.add_argument(
        "--keep",
        type=Path,
        help="a folder in which scripts and their runs stay; else failures print",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
