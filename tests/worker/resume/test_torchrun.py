"""A stop of torchrun: its ranks save one checkpoint, it says so, and the next attempt goes on."""

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.gangs import committed, digests_in, manifest
from tests.harness.unmodified_scripts import REPLICAS_OF_LAUNCHER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 18
LATE_STEPS_MAX = 5


@dataclass
class Launched:
    """One attempt that torchrun started, after its end."""

    exit_code: int
    output: str
    errors: str
    report: dict[str, Any]

    @property
    def weights(self) -> list[str]:
        """Digests, of which each rank printed one; lines of two ranks may run together."""
        assert self.exit_code == 0, self.errors
        assert self.report["phase"] == "finished"
        return sorted(digests_in(self.output))


def torchrun(
    folder: Path,
    attempt: int,
    stop: int,
    whom: str,
    *options: str,
    source: str = REPLICAS_OF_LAUNCHER,
    **settings: Any,
) -> Launched:
    """Two ranks, with two loader processes each; the ranks get the grace that the pod has."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(source.replace("OUT", str(folder / "out")))
    message = folder / f"termination-{attempt}"
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--tuning-seconds", "1", "--"]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [*own, *launcher, "train.py", "2", "1", str(stop), whom],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GPUJOB_SETTINGS": json.dumps({"mode": "Recommend", **settings}),
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
            "GPUJOB_GRACE_SECONDS": "200",
            "GPUJOB_TERMINATION_FILE": str(message),
            # What torchrun would give them by itself.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    return Launched(done.returncode, done.stdout, done.stderr, json.loads(message.read_text()))


def saved_step(done: Launched, folder: Path, asked: int) -> int:
    """The step that all ranks saved in one checkpoint, as launcher and report say: one of those
    soon after the stop. A launcher takes a moment to hand its signal on."""
    assert done.exit_code == 143, done.errors
    step = done.report["checkpoint"]["step"]
    assert done.report["phase"] == "draining"
    assert asked < step <= asked + LATE_STEPS_MAX
    assert committed(folder)[-1] == step
    assert list(manifest(folder, step)["ranks"]) == ["rank-0", "rank-1"]
    assert "Traceback" not in done.errors
    return step


@pytest.mark.promise("I6")
def test_a_stop_of_the_launcher_saves_in_all_ranks_and_the_next_attempt_goes_on(
    tmp_path: Path,
) -> None:
    whole = torchrun(tmp_path / "whole", 1, 0, "launcher").weights
    assert len(whole) == 2
    folder, first = tmp_path / "stopped", random.Random(11).randrange(2, 5)
    stopped = torchrun(folder, 1, first, "launcher")
    step = saved_step(stopped, folder, first)
    assert "the launcher's processes ended with 143, 143" in stopped.errors
    # One rank is asked, as by the operator's answer to its report: the launcher learns of it by the
    # ranks' end alone, and starts none anew.
    second = torchrun(folder, 2, step + 3, "0", "--max-restarts", "2")
    resumed = saved_step(second, folder, step + 3)
    assert second.errors.count(f"plain script: from step {step}: 3 objects, ") == 2
    assert second.report["protection"] == "Exact"
    end = torchrun(folder, 3, 0, "launcher")
    assert end.weights == whole
    assert (end.report["resumedFromStep"], end.report["step"]) == (resumed, STEPS)


EARLY = REPLICAS_OF_LAUNCHER.replace(
    "step = 0\n",
    "step = 0; import time\nif rank == 1: os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(100)\n",
    1,
)


@pytest.mark.promise("I13")
@pytest.mark.parametrize(("mode", "exit_code"), [("Auto", 144), ("Off", 1)])
def test_a_stop_before_the_first_step_is_no_failure(
    tmp_path: Path, mode: str, exit_code: int
) -> None:
    done = torchrun(tmp_path, 1, 0, "launcher", source=EARLY, mode=mode)
    assert done.exit_code == exit_code, done.errors
    assert (done.report["phase"], done.report["step"]) == ("draining", 0)
    assert "failure" not in done.report
