"""GPT-2's loss over thousands of steps, as written and as the worker runs it.

    python -m bench.long_loss [--steps 2000] [--ways plain,auto] [--device cpu --quick]

The worker keeps the last layer in TF32 where it lowers the rest to bfloat16 (on a GPU). `loss` is
the mean of the last hundred steps. Each way is kept in bench/results/<device>-loss.json as soon as
it has ended, so that two runs of one way each are one result. Nothing is compiled, so that the
order of kernels is the same from the start. The last line of the output is that file as JSON.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import describe_machine
from bench.shared.kept import Kept, stem_of, today
from bench.speed.device import describe_device, device_refusal
from bench.speed.ways import Scale, injected, plain, scale_of
from bench.table import format_table
from bench.turns.conductor import ROOT, Entry

RESULTS = ROOT / "bench" / "results"
WORKLOAD = "gpt2"
WAYS = PLAIN, AUTO = "plain", "auto"
STEPS, AVERAGED, EVERY = 2000, 100, 100
STEP_SECONDS_MAX = 2.0
_LOSS = re.compile(r"^step (\d+) loss (\S+)$")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.long_loss", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    unknown = [way for way in options.ways.split(",") if way not in WAYS]
    if unknown:
        parser.error(f"argument --ways: {unknown[0]!r} is none of {', '.join(WAYS)}")
    refusal = device_refusal(options.device)
    if refusal is not None:
        print(f"bench.long_loss: {refusal}", file=sys.stderr)
        return 1
    scale = scale_of(options.device, quick=options.quick)
    about = _about(scale, options.steps)
    name = stem_of(about["device"], "loss", *(["quick"] if options.quick else []))
    kept = Kept.open(options.results / f"{name}.json", about)
    for way in options.ways.split(","):
        kept.begin(way)
        started = time.monotonic()
        found = _train(way, scale, options.steps)
        kept.finish(way, found, time.monotonic() - started)
    rows = [{"way": way, **part} for way, part in kept.parts.items()]
    print(format_table(rows, ("way", "steps", "loss", "seconds", "date", "failure")))
    print(json.dumps(kept.result()))
    return 1 if any("failure" in row for row in rows) else 0


def _about(scale: Scale, steps: int) -> dict[str, Any]:
    found = describe_device(scale)
    name = found.get("device_name", "CPU")
    driver = found.get("driver", "-")
    head = {"bench": "long_loss", "date": today(), "machine": describe_machine()}
    return {**head, **found, "device": name, "driver": driver, "steps": steps}


def _entry(way: str, scale: Scale) -> Entry:
    if way == PLAIN:
        return plain(PLAIN, WORKLOAD, scale)
    return injected(AUTO, WORKLOAD, scale, url=None, settings={"compile": "Off"})


def _train(way: str, scale: Scale, steps: int) -> dict[str, Any]:
    """Runs the script to its end and reads the losses that it prints."""
    entry = _entry(way, scale)
    command = [*entry.command]
    command[command.index("--steps") + 1] = str(steps)
    paths = [str(ROOT / part / "src") for part in ("api", "worker")]
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **entry.environment}
    try:
        done = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60 + STEP_SECONDS_MAX * steps,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {"failure": f"took longer than {error.timeout:.0f} s"}
    losses = [float(m[2]) for line in done.stdout.splitlines() if (m := _LOSS.match(line))]
    if done.returncode != 0 or len(losses) < min(steps, AVERAGED):
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        return {"failure": f"ended with {done.returncode} after {len(losses)} steps: {last[0]}"}
    return {
        "steps": len(losses),
        "loss": round(statistics.fmean(losses[-AVERAGED:]), 4),
        "curve": losses[EVERY - 1 :: EVERY],
    }


if __name__ == "__main__":
    sys.exit(main())
