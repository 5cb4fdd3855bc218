"""Jobs that share one GPU under the real control plane, operator and agent: claims with numbers.

    python -m bench.shared_gpu [--minutes 10] [--parts alone,packed,...] [--gpu 0]
    python -m bench.shared_gpu --device cpu --quick     # a rehearsal on CPU cards, which it says
    python -m bench.shared_gpu --merge FILE FILE ...    # several runs on one device as one

The parts, in their order:

- alone: each light job by itself, measured by the operator;
- packed: all of them at once: work against one after the other, slowdown of each, memory as NVML
  counts it and as reserved, energy by the counter and by each job's watts alone;
- interfering: a neighbour begins to compute all the time: measured, bounded, kept apart;
- overreach: a job takes more memory than its cap, and is stopped beside its neighbour;
- unmanaged: a process of nobody holds memory, and a job waits for it;
- resume: a job is stopped and resumed, and ends with the weights of one that was not;
- pairs: the law of interference against the measurement, on pairs of `bench/workloads`;
- mps: the same pairs by time slicing and by MPS, if its daemon starts.

A light job computes 15 % of the time (12 % on a CPU card) and waits for the rest, as for its data.
After each part bench/results/<device>-shared.json has it, and a further run replaces only the parts
that it plays. The last line of the output is that file as one JSON object. Exits with 1 if a claim
fails, with 2 if something is missing, which is one line.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from bench.machine import describe_machine
from bench.shared import kept as keeping
from bench.shared.ground import (
    CARD_DISK_BYTES_MIN,
    CPU_CARDS,
    GPU_DISK_BYTES_MIN,
    Device,
    GroundError,
    check_disk,
    check_packages,
    cpu_card,
    find_gpu,
    torch_versions,
)
from bench.shared.kept import Kept, stem_of
from bench.speed.ways import WORKLOADS
from bench.table import format_table
from bench.turns.conductor import ROOT

RESULTS = ROOT / "bench" / "results"
PLAYED = ("alone", "packed", "interfering", "overreach", "unmanaged", "resume")
APART = ("pairs", "mps")
PARTS = (*PLAYED, *APART)
# What a part takes on a GPU, of which it is left out if less is left. The first one of the played
# ones also starts the cluster.
SECONDS = {
    "alone": 130, "packed": 45, "interfering": 75, "overreach": 55, "unmanaged": 20, "resume": 110,
    "pairs": 120, "mps": 60,
}  # fmt: skip
MINUTES_DEFAULT = 10.0
# What a part's table has anyway.
SHOWN = frozenset({"date", "seconds", "claims", "rows", "failure", "note"})
EXIT_CLAIM, EXIT_GROUND, EXIT_STOPPED = 1, 2, 143


class Stopped(Exception):  # noqa: N818 - a wish, not a fault
    """A signal asked the run to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.merge:
        return _merge(options.merge, options.results)
    try:
        device = _ground(options.device, options.gpu, quick=options.quick)
        kept = Kept.open(_path(options, device), _about(device, options))
    except (GroundError, ValueError) as error:
        print(f"bench.shared_gpu: {error}", file=sys.stderr)
        return EXIT_GROUND
    print(f"on {device.name}, driver {device.driver}{_rehearsal(device)}", flush=True)
    if kept.running is not None:
        print(f"the last run ended during the part {kept.running}; the parts before it are kept")
    try:
        with _stopped_by_signals():
            failure = play(device, kept, options)
    except Stopped as signal_name:
        done = ", ".join(kept.parts) or "nothing"
        print(
            f"bench.shared_gpu: stopped by {signal_name} during the part {kept.running}; kept in "
            f"{kept.path}: {done}",
            file=sys.stderr,
        )
        return EXIT_STOPPED
    except GroundError as error:
        print(f"bench.shared_gpu: {error}", file=sys.stderr)
        return EXIT_GROUND
    print(tables(kept.result()))
    print(json.dumps(kept.result()), flush=True)
    return EXIT_CLAIM if failure else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.shared_gpu", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU; others stay idle")
    parser.add_argument("--quick", action="store_true", help="small models, short windows")
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT)
    parser.add_argument("--parts", type=_parts, default=PARTS)
    kinds = _names_of(WORKLOADS)
    parser.add_argument("--kinds", type=kinds, help="of the light jobs (default: by device)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--logs", type=Path, help="keep the logs of all components here")
    parser.add_argument("--merge", nargs="+", type=Path, help="JSON files of runs, oldest first")
    return parser.parse_args(arguments)


def _names_of(every: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(name for name in text.split(",") if name))
        unknown = [name for name in found if name not in every]
        if unknown or not found:
            names = ", ".join(every)
            raise argparse.ArgumentTypeError(f"{(*unknown, text)[0]!r} is none of {names}")
        return found

    return read


def _parts(text: str) -> tuple[str, ...]:
    """In the order in which they are played. Some need what `alone` measures."""
    wanted = [*_names_of(PARTS)(text)]
    if set(wanted) & {"packed", "interfering", "overreach"}:
        wanted.append("alone")
    return tuple(name for name in PARTS if name in wanted)


def _ground(device: str, index: int, *, quick: bool) -> Device:
    check_packages()
    check_disk(CARD_DISK_BYTES_MIN if device == "cpu" or quick else GPU_DISK_BYTES_MIN)
    if device == "cpu":
        from bench.shared.stage import CARD_BYTES

        return cpu_card(CARD_BYTES)
    import pynvml

    return find_gpu(pynvml, index, torch_versions()[1])


def _about(device: Device, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "bench": "shared_gpu",
        "device": device.name,
        "driver": device.driver,
        "device_memory_bytes": device.memory_bytes,
        "size": "quick" if options.quick else "full",
        "versions": {"torch": torch_versions()[0]},
        "machine": describe_machine(),
        "date": keeping.today(),
    }


def _path(options: argparse.Namespace, device: Device) -> Path:
    more = ("quick",) if options.quick else ()
    return options.results / f"{stem_of(device.name, 'shared', *more)}.json"


def _rehearsal(device: Device) -> str:
    return "" if device.is_gpu else ": a rehearsal, no figure of it is one of a GPU"


@contextmanager
def _stopped_by_signals() -> Generator[None]:
    """The first SIGTERM, SIGINT or SIGHUP ends the run in order, and the cluster's processes."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for one in wanted:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def play(device: Device, kept: Kept, options: argparse.Namespace) -> bool:
    """The parts, as long as there is time. Returns whether a claim failed."""
    end = time.monotonic() + 60 * options.minutes
    failed = False
    played = [name for name in options.parts if name in PLAYED]
    if played:
        failed = _on_stage(device, kept, played, options, end)
    for name in options.parts:
        if name in APART and _has_time(name, end):
            failed |= _take(kept, name, lambda name=name: _apart(name, device, options.quick))
    return failed


def _on_stage(
    device: Device, kept: Kept, parts: Sequence[str], options: argparse.Namespace, end: float
) -> bool:
    from bench.shared.acts import SCALES, Acts
    from bench.shared.stage import set_stage
    from gpujob_local.control_plane.control_plane import ClusterError
    from gpujob_local.control_plane.go_toolchain import ToolError
    from gpujob_local.demo.following import StoryError

    scale = SCALES["cuda" if device.is_gpu else "cpu", options.quick]
    scale = replace(scale, kinds=options.kinds or scale.kinds)
    failed = False
    with tempfile.TemporaryDirectory(prefix="gpujob-shared-") as folder:
        try:
            with set_stage(device, Path(folder), scale.size, scale.pace) as stage:
                acts = Acts(stage, scale)
                every: dict[str, Callable[[], Any]] = {
                    "alone": acts.measure_alone,
                    "packed": acts.pack,
                    "interfering": acts.interfere,
                    "overreach": acts.overreach,
                    "unmanaged": acts.respect,
                    "resume": acts.resume,
                }
                for name in parts:
                    if not _has_time(name, end):
                        continue
                    stage.teller.chapter(name)
                    failed |= _take(kept, name, lambda name=name: _told(every[name], stage))
                    stage.clear()
                if failed or options.logs is not None:
                    where = options.logs or ROOT / "build" / "shared-logs"
                    print(f"logs kept in {stage.cluster.copy_logs(where)}")
        except (ClusterError, ToolError) as error:
            line = " ".join(str(error).split())
            raise GroundError(f"the control plane does not start: {line[:300]}") from None
        except StoryError as error:
            raise GroundError(str(error)) from None
    return failed


def _told(act: Callable[[], Any], stage: Any) -> dict[str, Any]:
    """Returns the result of the act. An act that raises has failed. The next one begins, because
    minutes on a GPU are rare.
    """
    from gpujob_local.demo.following import StoryError

    try:
        found = act()
    except Stopped:
        raise
    except Exception as error:
        if not isinstance(error, StoryError):
            traceback.print_exc()
        failure = str(error) if isinstance(error, StoryError) else repr(error)
        stage.teller.claim("The act ran to its end", False, failure)
        return {"claims": [], "rows": [], "failure": failure}
    for claim in found.claims:
        stage.teller.claim(claim.title, claim.holds, *claim.figures)
    return found.result()


def _take(kept: Kept, name: str, part: Callable[[], dict[str, Any]]) -> bool:
    """Plays one part and keeps it. Returns whether it or one of its claims failed."""
    started = time.monotonic()
    kept.begin(name)
    result = part()
    kept.finish(name, result, time.monotonic() - started)
    return bool(result.get("failure")) or not all(one["holds"] for one in result["claims"])


def _apart(name: str, device: Device, quick: bool) -> dict[str, Any]:
    from bench.shared import pairs

    return pairs.measure(device, quick=quick) if name == "pairs" else pairs.mps(device, quick=quick)


def _has_time(name: str, end: float) -> bool:
    left = end - time.monotonic()
    if left >= SECONDS[name]:
        return True
    print(f"left out: {name} takes about {SECONDS[name]} s, {max(0.0, left):.0f} s are left")
    return False


def _merge(paths: Sequence[Path], folder: Path) -> int:
    try:
        result = keeping.merged([json.loads(path.read_text()) for path in paths])
    except (OSError, ValueError, KeyError) as error:
        print(f"bench.shared_gpu: --merge: {error}", file=sys.stderr)
        return EXIT_GROUND
    path = folder / f"{stem_of(result['device'], 'shared', 'merged')}.json"
    keeping.write_whole(path, json.dumps(result, indent=1) + "\n")
    print(tables(result))
    print(json.dumps(result))
    return 0


def _words(value: Any) -> str:
    """A figure, or several by name."""
    if isinstance(value, dict):
        pairs: dict[str, Any] = value
        return ", ".join(f"{name} {_words(one)}" for name, one in pairs.items())
    return "-" if value is None else str(value)


def tables(result: dict[str, Any]) -> str:
    """What people read: the device, then each part's claims and rows."""
    device = result["device"]
    note = " (a rehearsal: no GPU was used)" if device == CPU_CARDS else ""
    lines = [f"{device}{note}, driver {result['driver']}, {result['date']}, {result['size']}"]
    for name in PARTS:
        part = result["parts"].get(name)
        if part is None:
            continue
        lines += ["", f"{name}, {part['date']}, {part['seconds']:.0f} s"]
        for claim in part["claims"]:
            lines.append(f"  {'ok  ' if claim['holds'] else 'FAIL'} {claim['title']}")
            lines += [f"       {figure}" for figure in claim["figures"]]
        if part.get("failure"):
            lines.append(f"  FAIL {part['failure']}")
        if part.get("note"):
            lines.append(f"  {part['note']}")
        if part["rows"]:
            lines.append(format_table(part["rows"], list(part["rows"][0])))
        lines += [f"  {key}: {_words(part[key])}" for key in part if key not in SHOWN]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
