"""What the worker cannot say is not said; the script and its last report do not depend on it."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)
TRAINING = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(0)
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(12):
    opt.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); opt.step()
print("trained")
"""
ENDS = {
    "none": "import sys; sys.stderr = None\n",
    "closed": "import sys; sys.stderr.close()\n",
    "a pipe that nobody reads": (
        "import os, sys; ends = os.pipe(); os.close(ends[0]); sys.stderr = open(ends[1], 'w', 1)\n"
    ),
    "closed at the end": f"{TRAINING}sys.stderr.close()\n",
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("broken", [None, "gpujob_worker.control.phases:Phases.after_step"])
def test_a_script_without_standard_error(name: str, broken: str | None, tmp_path: Path) -> None:
    lines = ENDS[name] if TRAINING in ENDS[name] else ENDS[name] + TRAINING
    (tmp_path / "train.py").write_text(lines)
    options = ("--explain", "--tuning-seconds", "1")
    code, run = run_worker(
        tmp_path,
        ["python", str(tmp_path / "train.py")],
        settings={"compile": "Off"},
        options=options,
        broken=broken,
    )
    assert (code, run.output) == (0, "trained\n")
    assert run.report["phase"] == "finished", run.report
    assert run.report["step"] == (12 if broken is None else 1), run.report


@pytest.mark.parametrize(
    "broken",
    [
        "gpujob_worker.run.profiling:StepProfiler.close",
        "gpujob_worker.hooks:Hooks._say_if_short",
        "gpujob_worker.run.decision_log:DecisionLog.end",
    ],
)
def test_the_last_report_is_written_whatever_fails_before_it(broken: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    options = ("--explain", "--tuning-seconds", "1", "--profile-steps", "20")
    code, run = run_worker(
        tmp_path,
        ["python", str(tmp_path / "train.py")],
        settings={"compile": "Off"},
        options=(*options, "--profile-directory", str(tmp_path / "profile")),
        broken=broken,
    )
    assert (code, run.output) == (0, "trained\n"), run.errors
    assert (run.report["phase"], run.report["step"]) == ("finished", 12), run.report
    assert any("broken on purpose" in line for line in run.report["explain"]), run.report


def test_a_failure_is_reported_whatever_fails_before_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{TRAINING}raise ValueError('it broke')\n")
    code, run = run_worker(
        tmp_path,
        ["python", str(tmp_path / "train.py")],
        settings={"compile": "Off"},
        broken="gpujob_worker.resume.plain_script:PlainScript.ended",
    )
    assert code == 1, run.errors
    assert run.report["failure"]["message"] == "ValueError: it broke", run.report
