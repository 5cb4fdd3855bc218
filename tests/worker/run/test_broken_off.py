"""An error that a stop began ends a run as an interruption: exit 144, and no failure."""

import os
import signal
from pathlib import Path

import pytest

from tests.harness.worker_process import WorkerRun, start_worker

pytestmark = pytest.mark.timeout(240)

# The stop is not heard at a step: something else breaks off first.
BREAKS = """
import os, signal, sys, time, torch
net = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad(); net(torch.ones(4, 2)).sum().backward(); optimizer.step()
print("ready", flush=True)
def wait():
    while True: time.sleep(0.01)
def heard(*_): raise ERROR
WHAT
"""
# From a place that the script chose, once the signal was handled.
AFTER = """
from gpujob_worker.run.current_session import ensure_session
while not ensure_session().stop.requested: time.sleep(0.01)
raise ERROR
"""
LOADS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        if i > 40: time.sleep(0.2)
        return torch.ones(2)
if __name__ == "__main__":
    net = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(Slow(), batch_size=4, num_workers=2)
    for step, x in enumerate(loader):
        if step == 6: print("ready", flush=True)
        optimizer.zero_grad(); net(x).sum().backward(); optimizer.step()
"""


def start(folder: Path, script: str) -> WorkerRun:
    (folder / "train.py").write_text(script)
    grace = {"GPUJOB_GRACE_SECONDS": "60"}
    settings = {"dataLoading": "Off"}
    command = ["python", str(folder / "train.py")]
    return start_worker(folder, command, environment=grace, settings=settings)


@pytest.mark.parametrize("error", ["BrokenPipeError(32, 'Broken pipe')", "ValueError('late')"])
def test_an_error_after_a_stop(error: str, tmp_path: Path) -> None:
    run = start(tmp_path, BREAKS.replace("WHAT", AFTER).replace("ERROR", error))
    run.wait_until(lambda: (tmp_path / "stdout").exists() and "ready" in run.output)
    run.send(signal.SIGTERM)
    assert run.wait() == 144, run.errors
    assert run.report["phase"] == "draining"
    assert "failure" not in run.report
    name = error.split("(", 1)[0]
    assert f"{name}: " in run.errors, "its traceback is the script's"
    assert any(
        line.startswith(f"stop the script broke off with {name}") for line in run.report["explain"]
    )


def test_the_same_error_without_a_stop(tmp_path: Path) -> None:
    run = start(tmp_path, BREAKS.replace("WHAT", "raise ERROR").replace("ERROR", "EOFError()"))
    assert run.wait() == 1, run.errors
    assert run.report["failure"]["failureClass"] == "Data"


def test_an_exit_code_that_the_script_chose_after_a_stop_stays(tmp_path: Path) -> None:
    run = start(tmp_path, BREAKS.replace("WHAT", AFTER).replace("raise ERROR", "sys.exit(3)"))
    run.wait_until(lambda: (tmp_path / "stdout").exists() and "ready" in run.output)
    run.send(signal.SIGTERM)
    assert run.wait() == 3, run.errors
    assert run.report["phase"] == "draining"
    assert "failure" not in run.report


def test_a_stop_of_the_loaders_processes_alone(tmp_path: Path) -> None:
    run = start(tmp_path, LOADS)
    run.wait_until(lambda: (tmp_path / "stdout").exists() and "ready" in run.output)
    pid = run.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)
    assert run.wait() == 144, run.errors
    assert run.report["phase"] == "draining"
    assert "failure" not in run.report


# A handler of the script's own, which saves and leaves as if all was done. HOW: where it stands.
LEAVES = """
import signal, sys, time
def leave(*_): sys.exit(0)
def handle(): signal.signal(signal.SIGTERM, leave)
if sys.argv[1] == "first": handle()
import torch
if sys.argv[1] == "second": handle()
net = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad(); net(torch.ones(4, 2)).sum().backward(); optimizer.step()
if sys.argv[1] == "late": handle()
print("ready", flush=True)
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("when", ["first", "second", "late"])
def test_a_handler_of_the_script_that_ends_with_0_is_no_end_of_the_training(
    when: str, tmp_path: Path
) -> None:
    """Kubernetes may not know of the signal: it was a probe's, a person's or systemd's."""
    (tmp_path / "train.py").write_text(LEAVES)
    run = start_worker(tmp_path, ["python", str(tmp_path / "train.py"), when])
    run.wait_until(lambda: (tmp_path / "stdout").exists() and "ready" in run.output)
    run.send(signal.SIGTERM)
    assert run.wait() == 0, run.errors
    assert run.report["phase"] == "draining"
    assert "failure" not in run.report
