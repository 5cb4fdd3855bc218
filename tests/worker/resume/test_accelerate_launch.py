"""A stop of `accelerate launch` reaches the script, which saves and goes on in the next attempt."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.unmodified_scripts import PLAIN

pytestmark = [
    pytest.mark.promise("I6"),
    pytest.mark.slow,
    pytest.mark.trainers,
    pytest.mark.timeout(900),
]
# To what a stop of the container reaches, whichever process that is.
SOURCE = PLAIN.replace("os.getpid()", 'int(os.environ["GPUJOB_FIRST_PROCESS"])')
LAUNCH = ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
TYPES = ["--mixed_precision", "no", "--dynamo_backend", "no"]


def launch(folder: Path, attempt: int, stop: int) -> tuple[int, str, dict[str, Any]]:
    """The exit code, the last line printed, and the last report."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SOURCE.replace("OUT", str(folder / "out")))
    message = folder / f"termination-{attempt}"
    own = [sys.executable, "-m", "gpujob_worker", "--tuning-seconds", "1", "--"]
    done = subprocess.run(
        [*own, *LAUNCH, *TYPES, "train.py", "0", "1", str(stop)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GPUJOB_SETTINGS": '{"mode": "Recommend"}',
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
            "GPUJOB_GRACE_SECONDS": "200",
            "GPUJOB_TERMINATION_FILE": str(message),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = done.stdout.splitlines()
    return done.returncode, lines[-1] if lines else "", json.loads(message.read_text())


def test_a_stop_of_accelerate_launch_saves_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    code, whole, _ = launch(tmp_path / "whole", 1, 0)
    assert (code, len(whole)) == (0, 64)
    code, _, report = launch(tmp_path / "stopped", 1, 7)
    assert (code, report["phase"], report["checkpoint"]["step"]) == (143, "draining", 7)
    code, end, report = launch(tmp_path / "stopped", 2, 0)
    assert (code, end, report["resumedFromStep"]) == (0, whole, 7)
