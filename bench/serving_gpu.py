"""Batching and the choice of a backend on one device, kept in bench/results.

    python -m bench.serving_gpu [--parts batching,backends] [--device cpu --quick]

`batching` is `bench.batching --parts eager`, and `backends` is the choice for one model of
`bench.backends`, without the full grid.
Each is kept in bench/results/<device>-serving.json as soon as it has ended. The last line of the
output is that file as JSON.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench.machine import describe_machine
from bench.shared.kept import Kept, stem_of, today
from bench.speed.device import describe_device, device_refusal
from bench.speed.ways import scale_of
from bench.table import format_table
from bench.turns.conductor import ROOT

RESULTS = ROOT / "bench" / "results"
PARTS = BATCHING, BACKENDS = "batching", "backends"
# Of a measurement of backends.
SECONDS, SECONDS_QUICK = 240, 60
SECONDS_MAX = 420.0
GRACE_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.serving_gpu", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="few requests, a short measurement")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts.split(",") if part not in PARTS]
    if unknown:
        parser.error(f"argument --parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.serving_gpu: {refusal}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _leave)
    about = _about(options.device, quick=options.quick)
    name = stem_of(about["device"], "serving", *(["quick"] if options.quick else []))
    kept = Kept.open(options.results / f"{name}.json", about)
    for part in options.parts.split(","):
        kept.begin(part)
        started = time.monotonic()
        found = run(command(part, options.device, quick=options.quick), SECONDS_MAX)
        kept.finish(part, found, time.monotonic() - started)
    rows = [{"part": part, **found} for part, found in kept.parts.items()]
    print(format_table(rows, ("part", "seconds", "date", "failure")))
    print(json.dumps(kept.result()))
    return 1 if any("failure" in row for row in rows) else 0


def command(part: str, device: str, *, quick: bool) -> list[str]:
    """Returns the command of a part."""
    python = [sys.executable, "-m", f"bench.{part}", "--device", device]
    if part == BATCHING:
        return [*python, "--parts", "eager", *(["--quick"] if quick else [])]
    seconds = SECONDS_QUICK if quick else SECONDS
    return [*python, "--models", "encoder", "--seconds", str(seconds), "--choice-only"]


def run(words: Sequence[str], seconds_max: float) -> dict[str, Any]:
    """Runs a command that prints a JSON object last. Returns its rows, or a `failure`."""
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(words, cwd=ROOT, env=_environment(), stdout=output)
        try:
            code = child.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return {"failure": f"took longer than {seconds_max:.0f} s"}
        finally:
            _end(child)
        output.seek(0)
        lines = output.read().strip().splitlines()
    print("\n".join(lines[:-1]), flush=True)
    try:
        found = json.loads(lines[-1])
        kept = {name: found[name] for name in ("results", "goals")}
    except (IndexError, KeyError, TypeError, ValueError):
        return {"failure": f"ended with {code} and without figures"}
    if not kept["results"]:
        return {"failure": "measured nothing"}
    return kept if code == 0 else {"failure": f"ended with {code}", **kept}


def _about(device: str, *, quick: bool) -> dict[str, Any]:
    found = describe_device(scale_of(device, quick=quick))
    name, driver = found.get("device_name", "CPU"), found.get("driver", "-")
    head = {"bench": "serving_gpu", "date": today(), "machine": describe_machine()}
    return {**head, **found, "device": name, "driver": driver}


def _environment() -> dict[str, str]:
    paths = [str(ROOT / part / "src") for part in ("api", "worker")]
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Lets the program end its own children, which have sessions of their own."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
