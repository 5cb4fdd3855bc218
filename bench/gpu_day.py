"""One plan for the minutes in which a GPU is there: the next parts that fit, kept as they end.

    python -m bench.gpu_day --minutes 12 [--pack DIR]   # the next parts within this time
    python -m bench.gpu_day --list                      # what is measured, and what comes next
    python -m bench.gpu_day --device cpu --quick        # a rehearsal on CPU cards
    python -m bench.gpu_day --write                     # bench/gpu_day.md from the plan and results

A part is run if bench/results has no figure of it for this GPU since the date from which figures
count. Parts that do not fit into the time are named; one that takes longer than planned is stopped,
and what it kept stays. With `--pack` the folder of `bench.gpu_pack` is unpacked first. At the end
runs of `bench.gpu` on one device become one table. The last line of the output is a JSON object.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from bench.shared.brought import PackError, Unpacked, run_environment, unpack
from bench.table import format_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "bench" / "gpu_day.md"
MINUTES_DEFAULT = 12.0
# A part may take this much longer than planned, and then has so long to end.
LONGER_FACTOR, GRACE_SECONDS = 1.5, 25.0
# What stays after the last part: to merge, and to copy the results.
RESERVE_SECONDS = 15.0
QUICK_SECONDS = 280.0
PR_SET_PDEATHSIG = 1
MEASURED, LEFT_OUT = "measured", "left out: no time"
CLAIM_FAILED = "measured, a claim fails"
PREPARED = "prepared, not measured on a GPU"
COLUMNS = ("part", "seconds", "shows", "measured")
ALL_ALIKE = ("device_name", "size", "driver", "versions")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its command, its planned seconds on a GPU, and by what its figures are known.

    `covers` are parts of a kept file, or `WORKLOAD/WAY` of a table of `bench.gpu`. Figures from
    before `since` do not count: the code that they are about has changed.
    """

    name: str
    shows: str
    seconds: int
    module: str
    arguments: tuple[str, ...]
    covers: tuple[str, ...]
    since: str = "2026-11-28"

    @property
    def command(self) -> str:
        return " ".join(("python -m", self.module, *self.arguments))


def _shared(name: str, shows: str, seconds: int, *parts: str) -> Part:
    return Part(name, shows, seconds, "bench.shared_gpu", ("--parts", ",".join(parts)), parts)


def _worker(workload: str, shows: str, seconds: int, ways: str) -> Part:
    arguments = ("--workloads", workload, "--parts", "worker", "--ways", ways)
    names = {"compiled": "auto, compiled", "hand": "by hand"}
    covers = ("auto", *(names[way] for way in ways.split(",")))
    full = tuple(f"{workload}/{way}" for way in covers)
    return Part(workload, shows, seconds, "bench.gpu", arguments, full)


# By value: first what has no figure at all and is the product's reason to exist.
PLAN = (
    _shared(
        "sharing",
        "jobs packed by measurement: work, slowdown, memory, energy; interference, cap, unmanaged "
        "process, exact resume",
        450,
        "alone",
        "packed",
        "interfering",
        "overreach",
        "unmanaged",
        "resume",
    ),
    _shared("law", "the law of interference against ten measured pairs", 120, "pairs"),
    _worker("resnet50", "loader workers: at least 97 % of the search by hand", 150, "hand"),
    _worker("vit", "the same, and compiled code that loses is not kept", 200, "compiled,hand"),
    Part(
        "serving",
        "services: batching at the deadline, and the choice of a backend with CUDA graphs",
        400,
        "bench.serving_gpu",
        (),
        ("batching", "backends"),
    ),
    _shared("mps", "MPS and time slicing side by side", 60, "mps"),
    Part(
        "tight",
        "limited memory: offload, split, the prediction at the limit",
        130,
        "bench.gpu",
        ("--workloads", "gpt2,vit", "--parts", "tight"),
        ("gpt2/tight", "vit/tight"),
    ),
    _worker("bert", "BERT, never measured on a GPU", 200, "compiled,hand"),
    _worker("recommender", "the recommender, never measured on a GPU", 150, "compiled,hand"),
    Part(
        "loss-auto",
        "GPT-2's loss over 2,000 steps with the last layer in TF32",
        140,
        "bench.long_loss",
        ("--ways", "auto"),
        ("auto",),
    ),
    Part(
        "loss-plain",
        "the same as written, to compare with",
        380,
        "bench.long_loss",
        ("--ways", "plain"),
        ("plain",),
    ),
    Part(
        "gpt2",
        "single items, CUDA graphs of compiled code and expandable segments among them",
        240,
        "bench.gpu",
        ("--workloads", "gpt2", "--parts", "worker", "--ways", "compiled,alone"),
        ("gpt2/auto", "gpt2/auto, compiled"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.write:
        PAGE.write_text(page(PLAN, read_results(options.results)))
        return 0
    results = read_results(options.results)
    print(format_table(plan_rows(PLAN, results), COLUMNS), flush=True)
    if options.list:
        return 0
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with ExitStack() as stack:
        try:
            unpacked = _unpacked(options.pack, stack)
        except PackError as error:
            print(f"bench.gpu_day: {error}", file=sys.stderr)
            return 2
        ran = run_parts(_wanted(options, results), options, unpacked, started)
        _merge(options.results, unpacked)
    print(format_table(ran, ("part", "seconds", "outcome")))
    result = {"bench": "gpu_day", "parts": ran, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(result), flush=True)
    return 0 if all(one["outcome"] in (MEASURED, LEFT_OUT) for one in ran) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [part.name for part in PLAN]
    parser = argparse.ArgumentParser(prog="bench.gpu_day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT)
    parser.add_argument("--pack", type=Path, help="folder that bench.gpu_pack has made")
    parser.add_argument("--parts", help=f"these, measured or not: {', '.join(names)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models, short windows")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="the plan, and what is measured")
    parser.add_argument("--write", action="store_true", help="write bench/gpu_day.md")
    options = parser.parse_args(arguments)
    unknown = [name for name in (options.parts or "").split(",") if name and name not in names]
    if unknown:
        parser.error(f"argument --parts: {unknown[0]!r} is none of {', '.join(names)}")
    return options


def _wanted(options: argparse.Namespace, results: Sequence[Row]) -> list[Part]:
    if options.parts:
        return [part for part in PLAN if part.name in options.parts.split(",")]
    if options.device == "cpu":
        return list(PLAN)
    return [part for part in PLAN if measured(part, results) is None]


def _unpacked(pack: Path | None, stack: ExitStack) -> Unpacked | None:
    if pack is None:
        return None
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpujob-brought-"))
    found = unpack(pack, Path(folder))
    print(f"unpacked in {found.seconds:.1f} s", flush=True)
    return found


def run_parts(
    parts: Iterable[Part],
    options: argparse.Namespace,
    unpacked: Unpacked | None,
    started: float,
) -> list[Row]:
    """Runs what fits, in the plan's order. A shorter part may run where a longer one does not."""
    end = started + 60 * options.minutes - RESERVE_SECONDS
    ran: list[Row] = []
    for part in parts:
        seconds = planned(part, options)
        left = end - time.monotonic()
        if left < seconds:
            ran.append({"part": part.name, "seconds": seconds, "outcome": LEFT_OUT})
            continue
        print(f"\n== {part.name}: {part.command}", flush=True)
        began = time.monotonic()
        outcome = run_part(part, options, unpacked, min(left, LONGER_FACTOR * seconds))
        took = round(time.monotonic() - began, 1)
        print(f"{part.name}: {outcome}, {took:.0f} s of {seconds:.0f}", flush=True)
        ran.append({"part": part.name, "seconds": took, "outcome": outcome})
    return ran


def planned(part: Part, options: argparse.Namespace) -> float:
    return QUICK_SECONDS if options.quick else float(part.seconds)


def run_part(
    part: Part, options: argparse.Namespace, unpacked: Unpacked | None, limit_seconds: float
) -> str:
    """Runs one part to its end, or to its limit. Returns how it ended."""
    python = str(unpacked.python) if unpacked is not None else sys.executable
    command = [python, "-m", part.module, *part.arguments, "--results", str(options.results)]
    command += ["--device", options.device, *(["--quick"] if options.quick else [])]
    if part.module in ("bench.gpu", "bench.shared_gpu"):
        # A table takes the time that it is given; the parts of a play end by themselves.
        given = limit_seconds if part.module == "bench.shared_gpu" else planned(part, options)
        command += ["--minutes", f"{min(given, limit_seconds) / 60:.2f}"]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=run_environment(unpacked),
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    try:
        code = child.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_seconds:.0f} s: what it kept stays"
    finally:
        _end(child)
    if part.module == "bench.shared_gpu" and code == 1:
        return CLAIM_FAILED
    return MEASURED if code == 0 else f"ended with {code}: see its last line"


def _end_with_parent() -> None:
    """Lets the kernel ask the child to end when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _leave(number: int, _frame: FrameType | None) -> None:
    """A signal ends the run by way of `run_part`, which ends its child in order."""
    sys.exit(128 + number)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, time to keep and to clean up, then SIGKILL to all of its group."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(GRACE_SECONDS)


def _merge(results: Path, unpacked: Unpacked | None) -> None:
    """Joins the runs of `bench.gpu` that are alike, if there are several."""
    for paths in alike_runs(results):
        python = str(unpacked.python) if unpacked is not None else sys.executable
        command = [python, "-m", "bench.gpu", "--results", str(results), "--merge"]
        done = subprocess.run(
            [*command, *map(str, paths)],
            cwd=ROOT,
            env=run_environment(unpacked),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            print(f"runs were not merged: {done.stderr.strip()[-200:]}", file=sys.stderr)


def alike_runs(results: Path) -> list[list[Path]]:
    """Files of `bench.gpu` by device and versions, the oldest first; merged ones are left out."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(results.glob("*.json")):
        result = _read(path)
        if result.get("bench") == "gpu" and not path.stem.endswith("-merged"):
            key = json.dumps([result.get(name) for name in ALL_ALIKE])
            found.setdefault(key, []).append((result["date"], path))
    return [[path for _, path in sorted(runs)] for runs in found.values() if len(runs) > 1]


def read_results(folder: Path) -> list[Row]:
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> Row:
    try:
        found: object = json.loads(path.read_text())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def measured(part: Part, results: Iterable[Row]) -> tuple[str, str] | None:
    """The date and the GPU of the newest figures of all that the part covers, or None."""
    dates: dict[str, dict[str, str]] = {}
    for result in results:
        device = device_of(result)
        if device is None or result.get("bench") != part.module.removeprefix("bench."):
            continue
        for name, date in covered(result).items():
            if date >= part.since:
                known = dates.setdefault(device, {})
                known[name] = max(date, known.get(name, ""))
    for device, known in sorted(dates.items()):
        if set(part.covers) <= set(known):
            return min(known[name] for name in part.covers), device
    return None


def device_of(result: Mapping[str, Any]) -> str | None:
    """The GPU of a result; None for one of CPU cards or of a quick run."""
    name = result.get("device_name") or result.get("device")
    of_cpu = result.get("driver") in (None, "-") or name in ("cpu", "CPU")
    return None if of_cpu or result.get("size") in ("quick", "small", "tiny") else str(name)


def covered(result: Mapping[str, Any]) -> dict[str, str]:
    """What a result has figures of, with the date of each."""
    if "parts" in result:
        parts: Mapping[str, Row] = result["parts"]
        return {name: part["date"] for name, part in parts.items() if not part.get("failure")}
    date = result.get("date", "")
    rows = [row for row in result.get("results", []) if "speedup" in row]
    found = {f"{row['workload']}/{row['way']}": date for row in rows}
    return found | {f"{row['workload']}/tight": date for row in result.get("tight", [])}


def plan_rows(plan: Iterable[Part], results: Sequence[Row]) -> list[Row]:
    rows: list[Row] = []
    for part in plan:
        text = _state(part, results)
        row = {"part": part.name, "seconds": part.seconds, "shows": part.shows, "measured": text}
        rows.append(row)
    return rows


def _state(part: Part, results: Sequence[Row]) -> str:
    found = measured(part, results)
    if found is not None:
        return f"{found[0]}, {found[1]}"
    before = measured(replace(part, since=""), results)
    if before is not None:
        return f"{before[0]}, {before[1]}, before the code changed"
    return PREPARED


def page(plan: Sequence[Part], results: Sequence[Row]) -> str:
    """The text of bench/gpu_day.md."""
    lines = [_HEAD]
    lines += ["| part | seconds | shows | command | measured |", "|---|---:|---|---|---|"]
    for part, row in zip(plan, plan_rows(plan, results), strict=True):
        lines.append(
            f"| {part.name} | {part.seconds} | {part.shows} | `{part.command}` | "
            f"{row['measured']} |"
        )
    total = sum(part.seconds for part in plan)
    lines += ["", f"All parts take {total / 60:.0f} minutes as planned.", ""]
    return "\n".join(lines)


_HEAD = """# Minutes with a GPU

`python -m bench.gpu_day --write` writes this page from the plan in `bench/gpu_day.py` and from
`bench/results`. The parts are in the order of their value. One command runs those that come next
and fit into a time:

```console
$ python -m bench.gpu_day --minutes 12          # on a machine with a GPU
$ python -m bench.gpu_day --list                # what is measured, and what comes next
$ python -m bench.gpu_day --device cpu --quick  # the same programs on CPU cards
```

A part that ends leaves its figures in `bench/results`, and the next run goes on behind it. A run
that is stopped or killed loses the part that it was in. If something is missing (NVML, a driver
that is new enough, a GPU that jobs may share, disk space, a package), the run ends with one line
that names it.

A machine without a network needs Python and torch, and a pack. `--without` names packages that it
has besides torch, if the pack is too large:

```console
$ python -m bench.gpu_pack DIR --python 3.12    # here: at most 64 MiB together with the checkout
$ python3 -m bench.gpu_day --pack DIR           # there: unpacks it first
```

Seconds are planned. "Measured" has the date and the GPU of figures. Those from before the code
changed do not count: the part is run again.
"""


if __name__ == "__main__":
    sys.exit(main())
