"""The worker on five training scripts: as written, injected, by hand, and other projects' finders.

    python -m bench.worker [--device cpu|cuda] [--quick] [--workloads gpt2,vit] [--tight gpt2]

Each way of training is a process of its own, started as a user starts it; they take turns in blocks
of steps, and speed is the median ratio of a round's blocks with a 95 % interval (bench/turns). On
the CPU that is of processor seconds at one thread, because others use the cores; `by_clock` is the
other. On a GPU it is the clock's.

- plain: the script, nothing else; `plain again`: a second one, which shows the noise;
- auto: `gpujob-run --` with default settings, without compilation, which a job of its own accord
  gets only after two minutes of training; `auto, compiled` asks for it at once, and is a note
  where there is no compiler;
- by hand: the best of all combinations of settings, tried on this machine (bench/speed/hand.py);
- only X: injected with one item left on, where several were applied: the gain stated apart.
  Of the batch nothing is gained by design: the total never changes, the whole goes through at once.

The second table limits memory to 60 % of what the script takes. `auto` is given the limit, without
loader workers, and its peak shows whether it is kept; Accelerate's find_executable_batch_size and
Lightning's scale_batch_size run beside it, with allocations failing at that limit (on the CPU of
reserved pages, which is stricter). They look for another total batch; ours splits the same one.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from bench.machine import print_result
from bench.speed.device import compilable, describe_device, device_refusal
from bench.speed.race import Deadline, race
from bench.speed.receiver import receiving
from bench.speed.tight import COMPARED, race_tight
from bench.speed.ways import AUTO, BY_HAND, COMPILED, WORKLOADS, Scale, scale_of
from bench.table import format_table
from bench.turns.ratios import geometric_mean

COLUMNS = (
    "workload", "way", "speedup", "low", "high", "by_clock", "samples_per_second", "peak_mib",
    "loss",
    "chosen", "probes", "tuning_seconds", "note",
)  # fmt: skip
TIGHT_COLUMNS = (
    "workload", "way", "total_batch", "rows_per_step", "speedup", "limit_mib", "peak_mib",
    "predicted_mib", "tried", "found_seconds", "out_of_memory", "note",
)  # fmt: skip

SHARE = "injected, the better of both, of the best by hand"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.worker", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny models, nothing compiled")
    parser.add_argument(
        "--no-compile", action="store_true", help="compiling takes most of the time"
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--tight", help="those of the second table (default: all, quick: vit)")
    options = parser.parse_args(arguments)
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.worker: {refusal}", file=sys.stderr)
        return 1
    scale = scale_of(options.device, quick=options.quick)
    if options.no_compile:
        scale = replace(scale, compile=False)
    scale = compilable(scale)
    names = options.workloads.split(",")
    tight = ["vit"] if options.quick else names
    if options.tight is not None:
        tight = [name for name in options.tight.split(",") if name != "none"]
    rows = measure(names, scale, None)
    tight_rows = measure_tight(tight, scale)
    print_tables(rows, tight_rows)
    print_result(
        rows, bench="worker", tight=tight_rows, summary=summary(rows), **describe_device(scale)
    )
    return 0


def measure(names: Sequence[str], scale: Scale, seconds: float | None) -> list[dict[str, Any]]:
    """The first table. `seconds` for all workloads together, shared out as time is left."""
    rows: list[dict[str, Any]] = []
    whole = Deadline.after(seconds)
    with receiving() as receiver:
        for index, name in enumerate(names):
            share = None if seconds is None else whole.left() / (len(names) - index)
            rows += race(name, scale, receiver, Deadline.after(share))
            _progress(rows, name)
    return rows


def measure_tight(names: Sequence[str], scale: Scale) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with receiving() as receiver:
        for name in names:
            rows += race_tight(name, scale, receiver)
            print(f"{name}: memory limited", file=sys.stderr)
    return rows


def _progress(rows: Sequence[dict[str, Any]], name: str) -> None:
    speeds = [
        f"{row['way']} " + (f"{row['speedup']:.2f}x" if "speedup" in row else str(row["note"]))
        for row in rows
        if row["workload"] == name
    ]
    print(f"{name}: {'; '.join(speeds)}", file=sys.stderr)


def print_tables(rows: Sequence[dict[str, Any]], tight: Sequence[dict[str, Any]]) -> None:
    print("Side by side, whole GPU; speedup in samples a second against the script as written")
    print(format_table(rows, COLUMNS))
    if tight:
        print("\nMemory limited to 60 % of what the script as written takes")
        print(format_table(tight, TIGHT_COLUMNS))
    missing = [name for name, module in COMPARED.items() if find_spec(module) is None]
    if missing:
        print(f"not installed, so not compared with: {', '.join(missing)}")
    for name, value in summary(rows).items():
        print(f"{name}: {value:.3f}")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means over the workloads; the injected best against the best by hand."""
    speeds: dict[str, dict[str, float]] = {}
    for row in rows:
        if "speedup" in row:
            speeds.setdefault(row["workload"], {})[row["way"]] = row["speedup"]
    found: dict[str, float] = {}
    for way in (AUTO, COMPILED, BY_HAND):
        values = [ways[way] for ways in speeds.values() if way in ways]
        if values and len(values) == len(speeds):
            found[f"{way}: geometric mean of speedups"] = geometric_mean(values)
    shares = _shares(rows)
    if shares:
        of = "" if len(shares) == len(speeds) else f" ({', '.join(shares)})"
        found[f"{SHARE}{of}"] = geometric_mean(list(shares.values()))
    return found


def _shares(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By workload, how near the injected speed comes to the best by hand. A search that compiled is
    compared with the better of both injected ways, and one that did not with eager code; nothing is
    where one of these is missing or ended early.
    """
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if "speedup" in row and not row.get("note"):
            measured.setdefault(row["workload"], {})[row["way"]] = row
    found: dict[str, float] = {}
    for workload, ways in measured.items():
        by_hand = ways.get(BY_HAND)
        if by_hand is None:
            continue
        # Rows from before the search said so are taken for compiled ones.
        compared = (AUTO, COMPILED) if by_hand.get("compiles", True) else (AUTO,)
        if all(way in ways for way in compared):
            best = max(ways[way]["speedup"] for way in compared)
            found[workload] = best / by_hand["speedup"]
    return found


if __name__ == "__main__":
    sys.exit(main())
