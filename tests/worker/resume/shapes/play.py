"""Plays one script: plain, and stopped at random steps; compares how both end."""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.worker_process import WorkerRun, run_alone, run_worker
from tests.worker.resume.shapes.scripts import Script, script

STOPS_MAX = 3
STEPS_MAX = 28
# Sends the signal to the script's own process after so many steps in it. Its count is in no
# variable of the script, which would come back as it was.
STOP = """
import os, signal
from torch.optim.optimizer import register_optimizer_step_post_hook as hook
made, at = [0], int(os.environ.get("SHAPES_AT") or 0)
def count(*_):
    made[0] += 1
    if made[0] == at: os.kill(os.getpid(), int(os.environ.get("SHAPES_SIGNAL") or 15))
hook(count)
"""


@dataclass(frozen=True)
class Outcome:
    """`state` is what was known before the first stop. Without a `difference` all is equal."""

    seed: int
    script: Script
    state: str
    reason: str
    difference: str | None


def play(seed: int, folder: Path) -> Outcome:
    made = script(seed)
    rng = random.Random(-seed)
    whole = _attempt(folder / "whole", made, 0, 0, 15)
    assert whole.process.exitcode == 0, whole.errors
    stops = [rng.randint(1, STEPS_MAX // 2) for _ in range(rng.randint(1, STOPS_MAX))]
    state, reason, run, saved = "", "", whole, False
    for number, stop in enumerate([*stops, 0], start=1):
        # Without a checkpoint a kill leaves nothing to compare.
        signal = 9 if saved and rng.random() < 0.3 else 15
        run = _attempt(folder / "stopped", made, number, stop, signal)
        code = run.process.exitcode
        report = _report(run)
        if number == 1:
            state = report.get("protection", "ended" if code == 0 else "unknown")
            reason = report.get("protectionReason", "")
        if "resumeRefused" in report:
            why = report["resumeRefused"]["reason"]
            return Outcome(seed, made, state, reason, f"attempt {number} was refused: {why}")
        if code == 0:
            break
        if code not in (143, 144, -9):
            text = f"attempt {number} ended with {code}: {run.errors[-1500:]}"
            return Outcome(seed, made, state, reason, text)
        saved = saved or code == 143
    difference = _difference(whole, run, folder, files=state != "FromBeginning")
    return Outcome(seed, made, state, reason, difference)


def _attempt(folder: Path, made: Script, number: int, stop: int, signal: int) -> WorkerRun:
    """In the same working folder each time; attempt 0 is the plain run."""
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    path = work / "train.py"
    path.write_text(f"import os\nos.chdir({str(work)!r})\n" + made.text)
    variables = {
        "SHAPES_STOP": STOP,
        "SHAPES_AT": str(stop),
        "SHAPES_SIGNAL": str(signal),
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "GPUJOB_ATTEMPT": str(number),
        "GPUJOB_GRACE_SECONDS": "60",
    }
    if number == 0:
        return run_alone(folder / "attempt-0", [str(path)], {"SHAPES_STOP": STOP})[1]
    _, done = run_worker(
        folder / f"attempt-{number}",
        ["python", str(path)],
        settings={"mode": "Recommend", "checkpointIntervalSeconds": 1},
        options=("--explain", "--tuning-seconds", "0.01"),
        environment=variables,
    )
    return done


def _report(run: WorkerRun) -> dict[str, Any]:
    """A killed process may not have written one."""
    path = run.folder / "termination"
    text = path.read_text() if path.exists() else ""
    return json.loads(text) if text else {}


def _difference(whole: WorkerRun, end: WorkerRun, folder: Path, *, files: bool) -> str | None:
    """What begins again appends to its files once more."""
    one, other = _end(whole), _end(end)
    if one != other or not one:
        return f"printed: {one} plain, {other} resumed"
    one_files, other_files = (dict(_files(folder / of / "work")) for of in ("whole", "stopped"))
    if files and one_files != other_files:
        return f"files: {one_files} plain, {other_files} resumed"
    return None


def _end(run: WorkerRun) -> list[str]:
    return re.findall("^END.*$", run.output, re.MULTILINE)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.iterdir()):
        if path.name != "train.py" and path.is_file():
            yield path.name, hashlib.sha256(path.read_bytes()).hexdigest()[:12]
