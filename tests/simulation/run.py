"""`python -m tests.simulation.run --seeds 0-9999`: many seeded fault schedules, checked.

Prints each seed that breaks a promise, with the command that replays it, and ends with the count.
With `--played FILE` a run that was interrupted can be continued: the file keeps the seeds that
broke no promise, and what they added up to, for this very code.
"""

import argparse
import logging
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gpujob_operator.garbage import collect_seldom
from tests.simulation.played_seeds import PlayedSeeds, counts_of, played_code
from tests.simulation.result import Result
from tests.simulation.simulation import run_seed

# Of what the simulation raised, the innermost of these are printed.
FRAMES = 3


def main(arguments: list[str] | None = None) -> int:
    """The number of seeds that failed, at most 1."""
    options = _options(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    try:
        played = PlayedSeeds(options.played, played_code()) if options.played else None
    except ValueError as error:
        print(f"tests.simulation.run: {error}", file=sys.stderr)
        return 1
    known = played.seeds if played is not None else {}
    before = {seed: known[seed] for seed in seeds if seed in known}
    if before:
        print(f"{len(before)} seeds were played before, by the same code", flush=True)
    counts = sum((one.counts for one in before.values()), Counter[str]())
    seconds = sum(one.took_seconds for one in before.values())
    commit, failed, noted = _commit(), 0, time.monotonic()
    for seed, result in _results([one for one in seeds if one not in before], options.processes):
        took, noted = time.monotonic() - noted, time.monotonic()
        seconds += took
        if isinstance(result, str) or result.violations:
            failed += 1
            print(_failure(seed, result, commit), flush=True)
        elif played is not None:
            played.note(seed, result, took)
        if isinstance(result, Result):
            counts.update(counts_of(result))
        if options.every and (seed - seeds.start + 1) % options.every == 0:
            print(f"... up to seed {seed}: {failed} failed", flush=True)
    print(
        f"{len(seeds)} seeds, {failed} failed; {counts['revisions']} revisions, "
        f"{counts['writes']} operator writes, {counts['cycles']} cycles, "
        f"{counts['seconds'] / 3600:.1f} h of virtual time; "
        f"{seconds:.0f} s, {len(seeds) / max(seconds, 1e-9):.1f} seeds/s, commit {commit}"
    )
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", default="0-999", help="one seed, or the first and the last")
    parser.add_argument("--processes", type=int, default=1, help="how many seeds at a time")
    parser.add_argument(
        "--played",
        type=Path,
        help="a file of the seeds that broke no promise: a run that was interrupted goes on there",
    )
    parser.add_argument("--every", type=int, default=500, help="say how far it is; 0: never")
    return parser.parse_args(arguments)


def _results(seeds: Sequence[int], processes: int) -> Iterable[tuple[int, Result | str]]:
    if processes == 1:
        _prepare()
        for seed in seeds:
            yield seed, _guarded(seed)
        return
    with ProcessPoolExecutor(processes, initializer=_prepare) as pool:
        yield from zip(seeds, pool.map(_guarded, seeds, chunksize=4), strict=True)


def _prepare() -> None:
    """Of this process, which plays seeds. What its operators log is of no use."""
    collect_seldom()
    logging.getLogger("gpujob_operator").setLevel(logging.CRITICAL)


def _guarded(seed: int) -> Result | str:
    """The result, or the traceback of what the simulation or the plan raised."""
    try:
        return run_seed(seed)
    except Exception:
        return traceback.format_exc(limit=-FRAMES)


def _failure(seed: int, result: Result | str, commit: str) -> str:
    what = result if isinstance(result, str) else "\n".join(map(str, result.violations[:5]))
    replay = f"python -m tests.simulation.run --seeds {seed}"
    return f"seed {seed} failed at commit {commit}: {what}\n  replay: {replay}"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
