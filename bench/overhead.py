"""What the worker costs where it gives nothing: step time with and without it, in pairs.

    python -m bench.overhead [--device cpu|cuda] [--quick] [--workloads gpt2] [--seconds 240]
                             [--before CHECKOUT]

Processes of one script take turns in blocks of steps (see bench/turns):

- off: the script alone; `off again`: a second one, whose ratio shows the noise;
- on, nothing applied: under `gpujob-run --` with every item switched off; hooks and meter are in;
- measuring: the same, with a report to an endpoint every two seconds and the termination message.
  The two seconds go by during others' turns, so it reports five times as often as it would;
- resumable: the same with a directory for checkpoints, so that the script can be brought back to
  where it is; no checkpoint is written meanwhile (`python -m bench.resume` has the cost of one);
- resumable before: the same under the product of another checkout, and how much longer steps take
  now.

Two processes of one program differ by a percent from where their memory lies alone, so all are
started afresh several times. `ratio` compares the quietest quarter of blocks and is the geometric
mean over these heats, `lowest` and `highest` are of single heats; `median` is over all pairs of
blocks with a 95 % interval. On a GPU they are of the clock's seconds, on the CPU of the
processor's at one thread, in which every thread of ours is contained: others use the cores.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.speed.device import describe_device, device_refusal
from bench.speed.receiver import Receiver, receiving
from bench.speed.ways import Scale, injected, plain, resumable, scale_of
from bench.table import format_table
from bench.turns.conductor import ENDED, Conductor, Entry, Program, pairs
from bench.turns.ratios import geometric_mean, paired_ratio, quiet_ratio
from gpujob_worker.tune.settings import FEATURES

OFF, AGAIN, NOTHING, MEASURING = "off", "off again", "on, nothing applied", "measuring"
RESUMABLE, BEFORE, AGAINST = "resumable", "resumable before", "resumable / before"
WAYS = OFF, AGAIN, NOTHING, MEASURING, RESUMABLE
RATIO_MAX = 1.01
ROUNDS_MIN, ROUNDS_MAX = 8, 5000
SECONDS_DEFAULT = {True: 20.0, False: 240.0}
BLOCK_STEPS = {"tiny": 20, "small": 6, "full": 4}
HEATS = {True: 2, False: 4}
COLUMNS = (
    "workload", "way", "ratio", "lowest", "highest", "median", "median_low", "median_high",
    "by_clock", "rounds", "step_milliseconds", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heat:
    """Pairs of seconds, of a way's block and of another one's in the same round: the script's."""

    blocks: list[tuple[float, float]]
    clock: list[tuple[float, float]]
    failure: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.overhead", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny models, half a minute")
    parser.add_argument("--workloads", default="gpt2")
    parser.add_argument("--seconds", type=float, help="of taking turns, for each workload")
    parser.add_argument("--before", type=Path, help="a checkout of another commit, to compare with")
    options = parser.parse_args(arguments)
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.overhead: {refusal}", file=sys.stderr)
        return 1
    scale = scale_of(options.device, quick=options.quick)
    seconds = options.seconds or SECONDS_DEFAULT[options.quick]
    names, heats = options.workloads.split(","), HEATS[options.quick]
    rows = measure(names, scale, seconds, heats, options.before)
    print_table(rows)
    print_result(rows, bench="overhead", ratio_max=RATIO_MAX, **describe_device(scale))
    return 0


def measure(
    names: Sequence[str], scale: Scale, seconds: float, heats: int, before: Path | None = None
) -> list[dict[str, Any]]:
    """Rows of all workloads; `seconds` of turns for each, shared among the heats."""
    ways = {way: (way, OFF) for way in WAYS}
    if before is not None:
        ways |= {BEFORE: (BEFORE, OFF), AGAINST: (RESUMABLE, BEFORE)}
    rows: list[dict[str, Any]] = []
    with receiving() as receiver, tempfile.TemporaryDirectory() as folder:
        for name in names:
            found: dict[str, list[Heat]] = {way: [] for way in ways}
            for heat in range(heats):
                own = Path(folder, f"{name}-{heat}")
                with Conductor(BLOCK_STEPS[scale.size]) as conductor:
                    conductor.start(_entries(name, scale, receiver, own, before))
                    _take_turns(conductor, seconds / heats)
                    conductor.end()
                    programs = conductor.programs
                    for way, (one, other) in ways.items():
                        found[way].append(_heat(programs[one], programs[other], scale))
            rows += [{"workload": name, "way": way, **_row(found[way], scale)} for way in ways]
            rows[WAYS.index(RESUMABLE) - len(ways)]["note"] = _protection(receiver, name)
            print(f"{name}: done", file=sys.stderr)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print("Step time against the script alone; 1.010 is the most that is aimed at")
    print(format_table(rows, COLUMNS))


def _entries(
    name: str, scale: Scale, receiver: Receiver, folder: Path, before: Path | None
) -> list[Entry]:
    all_but_resume = [feature for feature in FEATURES if feature != "resume"]

    def measuring(way: str, without: Sequence[str] = all_but_resume) -> Entry:
        url = receiver.url(f"{name}/{way}")
        entry = injected(way, name, scale, url=url, without=without)
        message = {"GPUJOB_TERMINATION_FILE": str(folder.with_suffix(f".{way}.json"))}
        return replace(entry, environment={**entry.environment, **message})

    entries = [
        plain(OFF, name, scale, beside_trials=False),
        plain(AGAIN, name, scale, beside_trials=False),
        injected(NOTHING, name, scale, url=None, without=FEATURES),
        measuring(MEASURING, FEATURES),
        resumable(measuring(RESUMABLE), folder / "now"),
    ]
    if before is not None:
        entries.append(resumable(measuring(BEFORE), folder / "before", before))
    return entries


def _protection(receiver: Receiver, name: str) -> str:
    """Whether the script can be brought back; else the cost of that is not in the figure."""
    report = receiver.reports.get(f"{name}/{RESUMABLE}")
    protection = report.protection if report is not None else None
    return f"resume: {protection.value if protection is not None else 'unknown'}"


def _take_turns(conductor: Conductor, seconds: float) -> None:
    ends = time.monotonic() + seconds
    for index in range(ROUNDS_MAX):
        if index >= ROUNDS_MIN and time.monotonic() > ends:
            return
        conductor.round()


def _heat(program: Program, off: Program, scale: Scale) -> Heat:
    """Seconds of the way and of the script alone, and the same by the clock."""
    paired = pairs(program, off)
    clock = [(b.seconds, o.seconds) for b, o in paired]
    if scale.device == "cpu":
        return Heat(
            [(b.processor_seconds, o.processor_seconds) for b, o in paired], clock, program.failure
        )
    return Heat(clock, clock, program.failure)


def _row(heats: Sequence[Heat], scale: Scale) -> dict[str, Any]:
    failures = {heat.failure for heat in heats} - {ENDED, None}
    run = [heat for heat in heats if heat.blocks]
    if not run:
        return {"note": "; ".join(map(str, failures)) or "no block was run"}
    quiet = [quiet_ratio(*zip(*heat.blocks, strict=True)).median for heat in run]
    clock = [quiet_ratio(*zip(*heat.clock, strict=True)).median for heat in run]
    every = [block for heat in run for block in heat.blocks]
    median = paired_ratio(*zip(*every, strict=True))
    return {
        "ratio": geometric_mean(quiet),
        "lowest": min(quiet),
        "highest": max(quiet),
        "median": median.median,
        "median_low": median.low,
        "median_high": median.high,
        "by_clock": geometric_mean(clock),
        "rounds": median.pairs,
        "heats": quiet,
        "step_milliseconds": 1e3 * statistics.median(b for b, _ in every) / BLOCK_STEPS[scale.size],
        "note": "; ".join(map(str, failures)) or None,
    }


if __name__ == "__main__":
    sys.exit(main())
