"""What the pod says at its end is said by the process that trains, not by what it forked."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)
SETTINGS = {"compile": "Off"}
TRAINING = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1)
def train(steps, breaks=False):
    torch.manual_seed(0)
    net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(steps):
        if breaks and i == 3: raise ValueError("it broke in the child")
        opt.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); opt.step()
def forked(work):
    child = os.fork()
    if child: return child
    work(); sys.exit(0)
"""
LOADER_WORKERS = """
from torch.utils.data import DataLoader, TensorDataset
train(12)
loader = DataLoader(TensorDataset(torch.ones(16, 4)), 4, num_workers=2)
print(sum(x.sum().item() for (x,) in loader))
"""
LEAVES = "train(12); os.waitpid(forked(lambda: None), 0)\n"
LEAVES_WITH_CODE = "train(12); os.waitpid(forked(lambda: sys.exit(3)), 0)\n"
TRAINS = "train(12); os.waitpid(forked(lambda: train(5)), 0)\n"
BREAKS = "train(12); os.waitpid(forked(lambda: train(5, breaks=True)), 0)\n"
BREAKS_BESIDE = """
begins = os.pipe()
def breaks():
    os.read(begins[0], 1); train(5, breaks=True)
child = forked(breaks)
train(12); os.write(begins[1], b"x"); os.waitpid(child, 0)
"""
BREAKS_IN_A_PROCESS = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=train, args=(5, True))
train(12); child.start(); child.join(); print(child.exitcode)
"""
BREAKS_IN_A_GRANDCHILD = """
def middle(): os.waitpid(forked(lambda: train(5, breaks=True)), 0)
train(12); os.waitpid(forked(middle), 0)
"""
# The child trains first, and for as long as its parent does not.
TRAINS_FIRST = """
trained, over = os.pipe(), os.pipe()
def first():
    train(5); os.write(trained[1], b"x"); os.read(over[0], 1)
child = forked(first)
os.read(trained[0], 1); train(12); os.write(over[1], b"x"); os.waitpid(child, 0)
"""
# It says why before its parent trains.
BREAKS_FIRST = """
def breaks(): nets = [nn.Linear(4, 1)]; torch.optim.SGD(nets[0].parameters()); sys.exit("broken")
os.waitpid(forked(breaks), 0); train(12)
"""
CHILDREN = {
    "breaks first": BREAKS_FIRST,
    "trains and breaks first": "os.waitpid(forked(lambda: train(5, breaks=True)), 0); train(12)\n",
    "loader workers": LOADER_WORKERS,
    "leaves": LEAVES,
    "leaves with a code": LEAVES_WITH_CODE,
    "trains": TRAINS,
    "breaks": BREAKS,
    "breaks, forked before its parent trains": BREAKS_BESIDE,
    "breaks, by multiprocessing": BREAKS_IN_A_PROCESS,
    "a child's child breaks": BREAKS_IN_A_GRANDCHILD,
    "trains first": TRAINS_FIRST,
}


@pytest.mark.parametrize("name", CHILDREN)
def test_the_last_word_is_of_the_process_that_trains(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + CHILDREN[name])
    code, run = run_worker(tmp_path, ["python", str(tmp_path / "train.py")], settings=SETTINGS)
    assert code == 0, run.errors
    assert "failure" not in run.report, run.errors
    assert (run.report["phase"], run.report["step"]) == ("finished", 12), run.report


def test_a_child_that_fails_says_why_where_its_parent_does_not_train(tmp_path: Path) -> None:
    script = TRAINING + "os.waitpid(forked(lambda: train(5, breaks=True)), 0); sys.exit(1)\n"
    (tmp_path / "train.py").write_text(script)
    code, run = run_worker(tmp_path, ["python", str(tmp_path / "train.py")], settings=SETTINGS)
    assert code == 1, run.errors
    assert run.report["failure"]["message"] == "ValueError: it broke in the child", run.report


def test_the_first_reason_stays_where_the_parent_fails_of_it(tmp_path: Path) -> None:
    script = f"{TRAINING}os.waitpid(forked(lambda: train(5, True)), 0); train(5, True)"
    (tmp_path / "train.py").write_text(script.replace('"it broke', 'f"{os.getppid()} it broke'))
    code, run = run_worker(tmp_path, ["python", str(tmp_path / "train.py")], settings=SETTINGS)
    assert code == 1, run.errors
    child = run.errors.split("ValueError: ")[1].splitlines()[0]
    assert run.report["failure"]["message"] == f"ValueError: {child}", run.report
