"""Everything about the worker that needs a GPU, in runs of about eight minutes.

    python -m bench.gpu [--minutes 8] [--workloads gpt2,vit] [--parts worker,overhead,tight]
                        [--ways compiled,hand,alone]
    python -m bench.gpu --device cpu --quick      # the same code on the CPU, to try it out
    python -m bench.gpu --merge FILE FILE ...     # several runs on one device as one table

Needs torch from a checkout, nothing installed and no network; what is not installed is named.
Without a compiler or Triton nothing is compiled, which is said first and in the compiled rows. The
parts share the time; what no longer fits is left out and said, what has begun is finished. With all
ways one workload takes about 200 s on an H200, most of it to compile, so that eight minutes hold
one or two: give the others to further runs, or leave some of `--ways` out. The script as written
and `auto` always run, `alone` is each applied item by itself. Writes bench/results/<device>.json
and .txt with the tables, the device's name, its driver and versions. A run of some workloads, parts
or ways has them in its files' names, in one order, and a table of several runs ends in `-merged`.
With `--quick` they have `quick` in them.

Exits with 1 when there is no CUDA device.
"""

import argparse
import contextlib
import datetime
import io
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import overhead, worker
from bench.machine import describe_machine
from bench.speed.device import compilable, describe_device, device_refusal
from bench.speed.merged import merged
from bench.speed.race import Deadline
from bench.speed.ways import (
    ALONE,
    AUTO,
    BY_HAND,
    COMPILED,
    OPTIONAL,
    WORKLOADS,
    Scale,
    scale_of,
)
from bench.turns.conductor import ROOT

RESULTS = ROOT / "bench" / "results"
MINUTES_DEFAULT = 8.0
PARTS = ("worker", "overhead", "tight")
# What is kept for the parts that come after the first, of the whole time.
OVERHEAD_FRACTION, TIGHT_FRACTION = 0.1, 0.15
TIGHT_SECONDS_NEEDED = 40.0
OVERHEAD_WORKLOADS = ("gpt2",)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models, nothing compiled")
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT)
    parser.add_argument("--workloads", type=_names_of(WORKLOADS), default=WORKLOADS)
    parser.add_argument("--parts", type=_names_of(PARTS), default=PARTS)
    ways = _names_of(OPTIONAL, or_none=True)
    parser.add_argument("--ways", type=ways, default=OPTIONAL, help="beside plain and auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--merge", nargs="+", type=Path, help="JSON files of runs, oldest first")
    options = parser.parse_args(arguments)
    if options.merge:
        return _merge(options.merge, options.results)
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.gpu: {refusal}", file=sys.stderr)
        return 1
    scale = scale_of(options.device, quick=options.quick)
    scale = replace(scale, ways=options.ways, compile=scale.compile and "compiled" in options.ways)
    names, parts = options.workloads, options.parts
    if "worker" in parts:
        scale = compilable(scale)
    found = measure(names, parts, scale, options.minutes * 60)
    result = {**found, **about(scale), "bench": "gpu"}
    _publish(result, options.results, _limits(names, parts, options.ways))
    return 0


def _limits(workloads: Collection[str], parts: Collection[str], ways: Collection[str]) -> list[str]:
    """What a result is limited to, if it has not everything: such results keep their own files,
    whatever the order in which it was asked for.
    """
    found: list[str] = []
    for held, every in ((workloads, WORKLOADS), (parts, PARTS), (ways, OPTIONAL)):
        if not set(every) <= set(held):
            found += [name for name in every if name in held]
    return found if ways else [*found, AUTO]


def _names_of(every: Sequence[str], *, or_none: bool = False) -> Callable[[str], tuple[str, ...]]:
    """What reads an option that lists some of `every`, each of them once."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(name for name in text.split(",") if name))
        unknown = [name for name in found if name not in every]
        if unknown or not (found or or_none):
            names = ", ".join(every)
            raise argparse.ArgumentTypeError(f"{(*unknown, text)[0]!r} is none of {names}")
        return found

    return read


def _publish(result: dict[str, Any], folder: Path, only: Sequence[str] = ()) -> None:
    text = tables(result)
    is_quick = result["size"] != scale_of(result["device"], quick=False).size
    path = write(result, text, folder, [*(["quick"] if is_quick else []), *only])
    print(f"{text}\nwritten to {path} and its .txt")
    print(json.dumps(result))


def _merge(paths: Sequence[Path], folder: Path) -> int:
    try:
        result = merged([json.loads(path.read_text()) for path in paths])
    except (OSError, ValueError, KeyError) as error:
        print(f"bench.gpu: --merge: {error}", file=sys.stderr)
        return 1
    _publish(result, folder, [*_limits(*_held(result)), "merged"])
    return 0


def _held(result: dict[str, Any]) -> tuple[set[str], set[str], set[str]]:
    """The workloads, parts and ways that have rows. A part that is missing limits no others."""
    rows = result["results"]
    workloads = {row["workload"] for row in (*rows, *result["tight"])}
    names = {"worker": "results", "overhead": "overhead", "tight": "tight"}
    parts = {part for part in PARTS if result[names[part]]}
    kinds = {COMPILED: "compiled", BY_HAND: "hand"}
    ways = {kinds.get(row["way"], "alone" if row["way"].startswith(ALONE) else "") for row in rows}
    return workloads or set(WORKLOADS), parts, ways - {""} if rows else set(OPTIONAL)


def measure(
    names: Sequence[str], parts: Sequence[str], scale: Scale, seconds: float
) -> dict[str, Any]:
    """The parts, in the order of their weight, within `seconds`."""
    start = time.monotonic()
    deadline = Deadline.after(seconds)
    kept = {"overhead": OVERHEAD_FRACTION * seconds, "tight": TIGHT_FRACTION * seconds}
    later = sum(kept[part] for part in parts if part in kept)
    found: dict[str, Any] = {"results": [], "overhead": [], "tight": [], "left_out": []}
    if "worker" in parts:
        found["results"] = worker.measure(names, scale, seconds - later)
    if "overhead" in parts:
        turns = max(10.0, kept["overhead"] - 15.0)  # less what starting takes
        found["overhead"] = overhead.measure(OVERHEAD_WORKLOADS, scale, turns, heats=1)
    for name in names if "tight" in parts else ():
        if deadline.has(TIGHT_SECONDS_NEEDED):
            found["tight"] += worker.measure_tight([name], scale)
        else:
            found["left_out"].append(f"{name} with limited memory: out of time")
    found["summary"] = worker.summary(found["results"])
    found["seconds"] = time.monotonic() - start
    return found


def about(scale: Scale) -> dict[str, Any]:
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": day, "machine": describe_machine(), **describe_device(scale)}


def tables(result: dict[str, Any]) -> str:
    """What people read: the device first, then the tables."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        name = result.get("device_name", result["machine"]["processor"])
        print(f"{name}, {result['date']}, size {result['size']}, {result['seconds']:.0f} s")
        versions = (f"{package} {version}" for package, version in result["versions"].items())
        print(f"driver {result.get('driver', '-')}, {', '.join(versions)}\n")
        parts: dict[str, Callable[[], None]] = {
            "results": lambda: worker.print_tables(result["results"], result["tight"]),
            "overhead": lambda: overhead.print_table(result["overhead"]),
        }
        for part, show in parts.items():
            # One function prints both tables of the worker.
            if result[part] or (part == "results" and result["tight"]):
                show()
                print()
        for line in result["left_out"]:
            print(f"left out: {line}")
    return printed.getvalue().rstrip()


def write(result: dict[str, Any], text: str, folder: Path, only: Sequence[str] = ()) -> Path:
    """The JSON object and the tables, named after the device and what the run is limited to."""
    name = "-".join([result.get("device_name") or result["device"], *only])
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".txt").write_text(text + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
