"""What the worker costs where it gives nothing: step time with and without it, in pairs.

    python -m bench.overhead [--device cpu|cuda] [--quick] [--workloads gpt2] [--seconds 240]

Four processes of one script take turns in blocks of steps (see bench/turns):

- off: the script alone; `off again`: a second one, whose ratio shows the noise;
- on, nothing applied: under `gpujob-run --` with every item switched off; hooks and meter are in;
- measuring: the same, with a report to an endpoint every two seconds and the termination message.
  The two seconds go by during others' turns, so it reports four times as often as it would.

`ratio` compares the quietest quarter of blocks, with a 95 % interval; `median` is over the pairs.
On a card they are of the clock's seconds, on the CPU of the processor's at one thread, in which
every thread of ours is contained, because others use the cores.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.speed.device import describe_device, device_refusal
from bench.speed.receiver import Receiver, receiving
from bench.speed.ways import Scale, injected, plain, scale_of
from bench.table import format_table
from bench.turns.conductor import ENDED, Conductor, Entry, Program, pairs
from bench.turns.ratios import paired_ratio, quiet_ratio
from gpujob_worker.switches import Switches

OFF, AGAIN, NOTHING, MEASURING = "off", "off again", "on, nothing applied", "measuring"
RATIO_MAX = 1.01
ROUNDS_MIN, ROUNDS_MAX = 8, 5000
SECONDS_DEFAULT = {True: 30.0, False: 300.0}
BLOCK_STEPS = {"tiny": 10, "small": 3, "full": 4}
COLUMNS = (
    "workload", "way", "ratio", "low", "high", "median", "median_low", "median_high", "by_clock",
    "rounds", "step_milliseconds", "note",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.overhead", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny models, half a minute")
    parser.add_argument("--workloads", default="gpt2")
    parser.add_argument("--seconds", type=float, help="of taking turns, for each workload")
    options = parser.parse_args(arguments)
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.overhead: {refusal}", file=sys.stderr)
        return 1
    scale = scale_of(options.device, quick=options.quick)
    seconds = options.seconds or SECONDS_DEFAULT[options.quick]
    rows = measure(options.workloads.split(","), scale, seconds)
    print_table(rows)
    print_result(rows, bench="overhead", ratio_max=RATIO_MAX, **describe_device(scale))
    return 0


def measure(names: Sequence[str], scale: Scale, seconds: float) -> list[dict[str, Any]]:
    """Rows of all workloads; `seconds` for each."""
    rows: list[dict[str, Any]] = []
    with receiving() as receiver, tempfile.TemporaryDirectory() as folder:
        for name in names:
            with Conductor(BLOCK_STEPS[scale.size]) as conductor:
                conductor.start(_entries(name, scale, receiver, Path(folder)))
                _take_turns(conductor, seconds)
                conductor.end()
                rows += _rows(name, scale, conductor)
            print(f"{name}: {len(rows)} rows", file=sys.stderr)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print("Step time against the script alone; 1.010 is the most that is aimed at")
    print(format_table(rows, COLUMNS))


def _entries(name: str, scale: Scale, receiver: Receiver, folder: Path) -> list[Entry]:
    nothing = Switches.names()
    measuring = injected(
        MEASURING, name, scale, url=receiver.url(f"{name}/{MEASURING}"), without=nothing
    )
    message = {"GPUJOB_TERMINATION_FILE": str(folder / f"{name}.json")}
    return [
        plain(OFF, name, scale),
        plain(AGAIN, name, scale),
        injected(NOTHING, name, scale, url=None, without=nothing),
        replace(measuring, environment={**measuring.environment, **message}),
    ]


def _take_turns(conductor: Conductor, seconds: float) -> None:
    ends = time.monotonic() + seconds
    for index in range(ROUNDS_MAX):
        if index >= ROUNDS_MIN and time.monotonic() > ends:
            return
        conductor.round()


def _rows(name: str, scale: Scale, conductor: Conductor) -> list[dict[str, Any]]:
    off = conductor.programs[OFF]
    return [
        {"workload": name, "way": way, **_row(program, off, scale, conductor.block_steps)}
        for way, program in conductor.programs.items()
    ]


def _row(program: Program, off: Program, scale: Scale, block_steps: int) -> dict[str, Any]:
    paired = pairs(program, off)
    if not paired:
        return {"note": program.failure or "no block was run"}
    seconds, others = [b.seconds for b, _ in paired], [b.seconds for _, b in paired]
    clock = ratio = quiet_ratio(seconds, others)
    if scale.device == "cpu":
        seconds = [b.processor_seconds for b, _ in paired]
        others = [b.processor_seconds for _, b in paired]
        ratio = quiet_ratio(seconds, others)
    median = paired_ratio(seconds, others)
    return {
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "median": median.median,
        "median_low": median.low,
        "median_high": median.high,
        "by_clock": clock.median,
        "rounds": ratio.pairs,
        "step_milliseconds": 1e3 * statistics.median(seconds) / block_steps,
        "note": None if program.failure == ENDED else program.failure,
    }


if __name__ == "__main__":
    sys.exit(main())
