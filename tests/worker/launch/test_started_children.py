"""A process that trains speaks for its pod in place of those that it started, by whatever means."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)
SETTINGS = {"compile": "Off"}
TRAINING = """
import os, subprocess, sys, torch
from torch import nn
torch.set_num_threads(1)
def train(steps, breaks=False):
    torch.manual_seed(0)
    net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(steps):
        if breaks and i == 3: raise ValueError("it broke in the child")
        opt.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); opt.step()
def started(*words): return [sys.executable, __file__, *words]
"""
BREAKS = "train(5, breaks=True)\n"
WHILE_IT_TRAINS = "train(12); print(subprocess.run(started('child')).returncode)\n"
BEFORE_IT_TRAINS = "subprocess.run(started('child')); train(12)\n"
BY_A_SHELL = "train(12); subprocess.run(['sh', '-c', '\"$@\"; true', 'sh', *started('child')])\n"
# The child trains first, and for as long as its parent does not.
TRAINS_FIRST = "train(5); print('trained', flush=True); sys.stdin.read()\n"
HOLDS = """
child = subprocess.Popen(started("child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline(); train(12); child.communicate()
"""
CHILDREN = {
    "breaks while its parent trains": (BREAKS, WHILE_IT_TRAINS),
    "breaks before its parent trains": (BREAKS, BEFORE_IT_TRAINS),
    "breaks, started by a shell": (BREAKS, BY_A_SHELL),
    "trains first": (TRAINS_FIRST, HOLDS),
}
SPAWNED = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("METHOD").Process(target=train, args=(5, True))
    train(12); child.start(); child.join(); assert child.exitcode == 1
"""


def script(tmp_path: Path, child: str, parent: str) -> str:
    both = f"if sys.argv[1:] == ['child']:\n    {child}    sys.exit()\n{parent}"
    (tmp_path / "train.py").write_text(TRAINING + both)
    return str(tmp_path / "train.py")


@pytest.mark.parametrize("name", CHILDREN)
def test_the_last_word_is_of_the_process_that_started_the_other(name: str, tmp_path: Path) -> None:
    command = ["python", script(tmp_path, *CHILDREN[name])]
    code, run = run_worker(tmp_path, command, settings=SETTINGS)
    assert code == 0, run.errors
    assert "failure" not in run.report, run.errors
    assert (run.report["phase"], run.report["step"]) == ("finished", 12), run.report


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_too(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + SPAWNED.replace("METHOD", method))
    code, run = run_worker(tmp_path, ["python", str(tmp_path / "train.py")], settings=SETTINGS)
    assert code == 0, run.errors
    assert "it broke in the child" in run.errors
    assert "failure" not in run.report, run.report
    assert (run.report["phase"], run.report["step"]) == ("finished", 12), run.report


def test_a_child_says_why_where_its_parent_does_not_train(tmp_path: Path) -> None:
    command = [
        "python",
        script(tmp_path, BREAKS, "sys.exit(subprocess.run(started('child')).returncode)\n"),
    ]
    code, run = run_worker(tmp_path, command, settings=SETTINGS)
    assert code == 1, run.errors
    assert run.report["failure"]["message"] == "ValueError: it broke in the child", run.report
