"""`python -m tests.worker.resume.shapes --seeds 0-1999`: prints a table and one JSON object.

A failure is a script whose end differs from the plain run's, or that was not known beforehand to
start from the beginning. `--keep` leaves the folders of seeds for a look.
"""

import argparse
import collections
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.worker.resume.shapes.play import Outcome, play

EXACT, BEGINNING = "Exact", "FromBeginning"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.worker.resume.shapes", description=__doc__
    )
    parser.add_argument("--seeds", default="0-99", help="first-last (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="at a time")
    parser.add_argument("--keep", type=Path, help="a folder for the scripts, logs and checkpoints")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    begin = time.monotonic()
    base = asked.keep or Path(tempfile.mkdtemp(prefix="shapes-"))
    outcomes: list[Outcome] = []

    def one(seed: int) -> Outcome:
        folder = base / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        outcome = play(seed, folder)
        if asked.keep is None and outcome.difference is None:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    with ThreadPoolExecutor(asked.jobs) as pool:
        for outcome in pool.map(one, seeds):
            outcomes.append(outcome)
            if outcome.difference is not None:
                parts = ", ".join(outcome.script.parts)
                print(f"seed {outcome.seed} ({outcome.script.loop}; {parts}), {outcome.state}:")
                print(f"  {outcome.difference}\n  {base / str(outcome.seed)}", flush=True)
            elif len(outcomes) % 50 == 0:
                print(f"{len(outcomes)} of {len(seeds)}", file=sys.stderr, flush=True)
    return _report(outcomes, time.monotonic() - begin)


def _report(outcomes: list[Outcome], seconds: float) -> int:
    failures = [each for each in outcomes if each.difference is not None]
    print(f"\n{'loop':24}{'scripts':>8}{'exact':>8}{'from the beginning':>20}{'failures':>10}")
    for loop in sorted({each.script.loop for each in outcomes}):
        here = [each for each in outcomes if each.script.loop == loop]
        states = collections.Counter(each.state for each in here)
        failed = sum(each.difference is not None for each in here)
        print(f"{loop:24}{len(here):8}{states[EXACT]:8}{states[BEGINNING]:20}{failed:10}")
    reasons = collections.Counter(each.reason for each in outcomes if each.state == BEGINNING)
    for reason, count in reasons.most_common(10):
        print(f"{count:5} {reason}")
    states = collections.Counter(each.state for each in outcomes)
    print(
        json.dumps(
            {
                "scripts": len(outcomes),
                "states": dict(states),
                "exact_share": states[EXACT] / max(1, len(outcomes) - states["ended"]),
                "failures": len(failures),
                "failed_seeds": [each.seed for each in failures],
                "seconds": round(seconds, 1),
                "machine": f"{os.cpu_count()} cores, {platform.machine()}",
                "python": platform.python_version(),
            }
        )
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
