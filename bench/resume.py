"""What a checkpoint costs a training, and how long a stop takes: both ways of writing in one run.

    python -m bench.resume [--device cpu|cuda] [--quick] [--megabytes 1490] [--stops 100]
                           [--stopped-megabytes 200] [--before CHECKOUT]

- `training waits`: the training stands still until the checkpoint is committed, as where the host
  memory has no room for a copy;
- `beside the training`: it stands still for the copy alone; a thread commits the copy.

Both take turns, a checkpoint each. `blocked` is how long training stood still, `write` how long
until the commit, `dip_percent` how much longer the ten steps after it took than the ten before.
Then processes of either way are stopped by SIGTERM at random moments, many of them while they
write: `p95` is of the seconds from the signal to the commit of the newest step, `saved` counts the
stops whose newest step was committed.

Before these a plain script is saved (bench/workloads/gpt2.py, cut down): `blocked` is how much
longer its steps took around a checkpoint than without one, `written` the same until the commit;
beside each is the processor's, in milliseconds. With `--before` a second process takes turns with
it, under the product of another checkout; the ratios are of the processor's milliseconds, with a
95 % interval.
"""

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.resuming.script import COLUMNS as SCRIPT_COLUMNS
from bench.resuming.script import measure_script
from bench.resuming.training import WAYS, Work, cost_of_saving, train_until_stopped
from bench.speed.device import device_refusal
from bench.table import format_table

# GPT-2 with 124 million parameters, their gradients' two averages and nothing else.
MEGABYTES, MEGABYTES_QUICK = 1490, 100
MEGABYTES_STOPPED = 200
ROUNDS, ROUNDS_QUICK = 7, 3
INTERVAL_SECONDS = 1
SEED = 1
COST_COLUMNS = ("way", "megabytes", "blocked", "blocked_max", "write", "dip_percent", "rounds")
STOP_COLUMNS = ("way", "megabytes", "stops", "saved", "median", "p95", "longest")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.resume", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small state and few stops")
    parser.add_argument("--megabytes", type=int, help="of the state that is saved")
    parser.add_argument("--stops", type=int, help="of each way (default 100, quick: 4)")
    parser.add_argument(
        "--stopped-megabytes",
        type=int,
        help=f"of the state that is saved at a stop (default: as above, at most "
        f"{MEGABYTES_STOPPED}: a state of several GB takes minutes for each of many stops)",
    )
    parser.add_argument("--before", type=Path, help="a checkout of another commit, to compare with")
    parser.add_argument("--directory", type=Path, help="where checkpoints go (default: temporary)")
    options = parser.parse_args(arguments)
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.resume: {refusal}", file=sys.stderr)
        return 1
    megabytes = options.megabytes or (MEGABYTES_QUICK if options.quick else MEGABYTES)
    stops = options.stops or (4 if options.quick else 100)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        script = measure_script(
            Path(folder), options.device, quick=options.quick, before=options.before
        )
        print("What a checkpoint costs a plain script, in milliseconds; medians over rounds")
        print(format_table(script, SCRIPT_COLUMNS))
        costs = measure_costs(
            Path(folder), megabytes, options.device, ROUNDS_QUICK if options.quick else ROUNDS
        )
        print("\nWhat a checkpoint costs, in seconds; medians over rounds")
        print(format_table(costs, COST_COLUMNS))
        saved_megabytes = options.stopped_megabytes or min(megabytes, MEGABYTES_STOPPED)
        stopped = measure_stops(Path(folder), saved_megabytes, options.device, stops)
    print("\nFrom SIGTERM to the commit of the newest step, in seconds")
    print(format_table(stopped, STOP_COLUMNS))
    print_result([*costs, *stopped], bench="resume", device=options.device, script=script)
    return 0


def measure_costs(folder: Path, megabytes: int, device: str, rounds: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    turns = {way: context.Semaphore(0) for way in WAYS}
    results = context.Queue()
    processes: dict[str, Any] = {}
    for index, way in enumerate(WAYS):
        work = Work(way, megabytes, device, 10**6, str(folder / f"cost-{index}"))
        after = turns[WAYS[(index + 1) % len(WAYS)]]
        processes[way] = context.Process(
            target=_saves_in_turns, args=(work, rounds, turns[way], after, results)
        )
        processes[way].start()
    turns[WAYS[0]].release()
    found = dict(results.get(timeout=3600) for _ in WAYS)
    for process in processes.values():
        process.join()
    return [_cost_row(way, megabytes, found[way]) for way in WAYS]


def _saves_in_turns(work: Work, rounds: int, mine: Any, other: Any, results: Any) -> None:
    started = False

    def take_turns() -> None:
        nonlocal started
        if started:
            other.release()
        started = True
        mine.acquire()

    rows = cost_of_saving(work, rounds, take_turns)
    other.release()
    results.put((work.way, rows))


def _cost_row(way: str, megabytes: int, rows: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "way": way,
        "megabytes": megabytes,
        "blocked": statistics.median(row["blocked"] for row in rows),
        "blocked_max": max(row["blocked"] for row in rows),
        "write": statistics.median(row["write"] for row in rows),
        "dip_percent": 100.0 * statistics.median(row["dip"] for row in rows),
        "rounds": len(rows),
    }


def measure_stops(folder: Path, megabytes: int, device: str, stops: int) -> list[dict[str, Any]]:
    """A stop of each way in turns; moments are drawn alike for both."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "bench.resuming.training"])
    rng = random.Random(SEED)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    saved = dict.fromkeys(WAYS, 0)
    for number in range(stops):
        delay = rng.uniform(0.0, 3.0 * INTERVAL_SECONDS)
        for index, way in enumerate(WAYS):
            directory = folder / f"stop-{number}-{index}"
            work = Work(way, megabytes, device, INTERVAL_SECONDS, str(directory))
            took = _stop(context, work, delay)
            saved[way] += took is not None
            seconds[way] += [] if took is None else [took]
    return [
        {
            "way": way,
            "megabytes": megabytes,
            "stops": stops,
            "saved": saved[way],
            "median": statistics.median(seconds[way]) if seconds[way] else None,
            "p95": _percentile(seconds[way], 0.95),
            "longest": max(seconds[way], default=None),
        }
        for way in WAYS
    ]


def _stop(context: Any, work: Work, delay: float) -> float | None:
    """Seconds from the signal to the commit; None where the newest step was not committed."""
    directory = Path(work.directory)
    ready = directory.with_suffix(".ready")
    process = context.Process(target=train_until_stopped, args=(work, str(ready)))
    process.start()
    while not ready.exists():
        if process.exitcode is not None:
            raise RuntimeError(f"a training ended with {process.exitcode} before its first step")
        time.sleep(0.005)
    time.sleep(delay)
    sent = time.time()
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    steps = [(int(path.name[5:]), path) for path in directory.glob("step-*")]
    # The rename that commits is the last change of the newest folder's own entry.
    took = max(steps)[1].stat().st_ctime - sent if steps else 0.0
    for _, path in steps:
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    return took if process.exitcode == 143 else None


def _percentile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


if __name__ == "__main__":
    sys.exit(main())
