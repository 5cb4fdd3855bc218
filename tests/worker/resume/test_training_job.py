"""A run that is killed again and again ends with the weights of one that was not, bit for bit."""

import json
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.run.graceful_stop import Stop
from tests.harness.worker_process import WorkerRun, run_worker, start_worker

SCRIPT = """
import hashlib, json, random, sys, time
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from gpujob_worker import prepare

workers, mode = int(sys.argv[1]), sys.argv[2]

class Data(Dataset):
    def __len__(self): return 47
    def __getitem__(self, i):
        noise = 0.0
        if workers == 0:
            noise = torch.rand(()).item() + random.random() + float(numpy.random.rand())
        return torch.full((6,), float(i % 7)) / 7 + 0.01 * noise, torch.tensor([float(i % 3)])

torch.manual_seed(3); random.seed(3); numpy.random.seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=workers,
                    persistent_workers=mode == "persistent")
losses = []
job = prepare(model, optimizer, loader, scheduler)
job.state("losses", losses)
for epoch in range(3):
    for x, y in job.loader:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        print("step", len(losses), flush=True)
        time.sleep(0.01)
    random.random()
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
json.dump({"losses": losses, "weights": digest.hexdigest()}, open("RESULT", "w"))
"""
pytestmark = pytest.mark.timeout(240)
STEPS = 36
SETTINGS = {"mode": "Recommend", "checkpointIntervalSeconds": 1}
# Probing must leave no trace, and each attempt does it again; how well it measures is not asked.
OPTIONS = ("--explain", "--tuning-seconds", "1")


def start(folder: Path, attempt: int, *arguments: str, **settings: Any) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("RESULT", str(folder / "result.json")))
    return start_worker(
        folder / f"attempt-{attempt}",
        ["python", str(script), *arguments],
        settings={**SETTINGS, **settings},
        options=OPTIONS,
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
        },
    )


def uninterrupted(folder: Path, *arguments: str, **settings: Any) -> dict[str, Any]:
    assert start(folder, 1, *arguments, **settings).wait() == 0
    return json.loads((folder / "result.json").read_text())


def step_of(run: WorkerRun) -> int:
    lines = run.output.splitlines() if (run.folder / "stdout").exists() else []
    return int(lines[-1].split()[1]) if lines and lines[-1][-1:].isdigit() else 0


@pytest.mark.promise("I6", "I13")
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("0", "plain"), ("2", "persistent")])
def test_sigterm_at_random_steps(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    expected = uninterrupted(tmp_path / "whole", *arguments)
    assert len(expected["losses"]) == STEPS
    rng = random.Random(arguments[0])
    folder, attempt, resumed_at = tmp_path / "killed", 0, 0
    for _ in range(3):
        attempt += 1
        run = start(folder, attempt, *arguments)
        until = resumed_at + rng.randint(1, 9)
        run.wait_until(lambda run=run, until=until: step_of(run) >= until)
        run.send(signal.SIGTERM)
        assert run.wait() == 143, run.errors
        report = run.report
        assert report["phase"] == "draining"
        assert report["checkpoint"]["step"] == report["step"] == step_of(run)
        assert report.get("resumedFromStep", 0) == resumed_at
        resumed_at = report["step"]
    assert start(folder, attempt + 1, *arguments).wait() == 0
    assert json.loads((folder / "result.json").read_text()) == expected


@pytest.mark.promise("I6")
@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "whole", "0", "plain")
    rng = random.Random(5)
    folder = tmp_path / "killed"
    durable = 0
    for attempt in range(1, 4):
        run = start(folder, attempt, "0", "plain", checkpointIntervalSeconds=0)
        until = durable + rng.randint(2, 8)
        run.wait_until(lambda run=run, until=until: step_of(run) >= until)
        run.send(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        steps = [int(p.name[5:]) for p in (folder / "checkpoints").glob("step-?*")]
        assert max(steps) >= max(durable, step_of(run) - 2), "more than one interval was lost"
        durable = max(steps)
    assert start(folder, 4, "0", "plain").wait() == 0
    assert json.loads((folder / "result.json").read_text()) == expected


def test_the_kernel_in_force_goes_on_after_a_resume(tmp_path: Path) -> None:
    """The checkpoint says so, although the optimizer's own state names no kernel of ours."""
    known = {"mode": "Auto", "tuned": {"fusedOptimizer": True}}
    expected = uninterrupted(tmp_path / "whole", "0", "plain", **known)
    folder = tmp_path / "stopped"
    run = start(folder, 1, "0", "plain", **known)
    run.wait_until(lambda: step_of(run) >= 9)
    run.send(signal.SIGTERM)
    assert run.wait() == 143, run.errors
    run = start(folder, 2, "0", "plain", mode="Auto")
    assert run.wait() == 0, run.errors
    assert run.report["resumedFromStep"] >= 9
    assert run.report["tuned"]["fusedOptimizer"] is True
    assert json.loads((folder / "result.json").read_text()) == expected


@pytest.mark.promise("I6")
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "whole", "0", "plain")
    folder = tmp_path / "damaged"
    run = start(folder, 1, "0", "plain", checkpointIntervalSeconds=0)
    run.wait_until(lambda: step_of(run) >= 12)
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    newest = max(int(p.name[5:]) for p in (folder / "checkpoints").glob("step-?*"))
    tensors = folder / "checkpoints" / f"step-{newest}" / "rank-0" / "state.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-3] ^= 16
    tensors.write_bytes(bytes(data))
    run = start(folder, 2, "0", "plain")
    assert run.wait() == 0
    assert run.report["resumedFromStep"] < newest
    assert "falling back" in " ".join(run.report["explain"])
    assert json.loads((folder / "result.json").read_text()) == expected


ACCUMULATING = """
import json, os, signal, torch
from torch import nn
from torch.utils.data import DataLoader
from gpujob_worker import prepare

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader = DataLoader(torch.randn(24, 4), batch_size=2, shuffle=True)
count = [0]
job = prepare(model, optimizer, loader)
job.state("count", count)
for epoch in range(3):
    for x in job.loader:
        loss = model(x).square().mean() / 4
        loss.backward()
        count[0] += 1
        if os.environ["GPUJOB_ATTEMPT"] == "1" and count[0] == STOP:
            os.kill(os.getpid(), signal.SIGTERM)
        if count[0] % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
weights = [tensor.tolist() for tensor in model.state_dict().values()]
json.dump({"count": count, "weights": weights}, open("RESULT", "w"))
"""


def accumulates(folder: Path, attempt: int, stop: int) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    result = str(folder / "result.json")
    script.write_text(ACCUMULATING.replace("RESULT", result).replace("STOP", str(stop)))
    environment = {
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "GPUJOB_ATTEMPT": str(attempt),
    }
    return start_worker(
        folder / f"attempt-{attempt}",
        ["python", str(script)],
        settings={"mode": "Off"},
        environment=environment,
    )


def test_a_stop_within_an_accumulated_step_waits_for_the_step(tmp_path: Path) -> None:
    """The gradients of the batches before it are in no checkpoint."""
    whole = accumulates(tmp_path / "whole", 1, stop=0)
    assert whole.wait() == 0, whole.errors
    expected = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert expected["count"] == [36]
    # In each of the four batches of the fourth step, which are the first of the second pass.
    for stop in (13, 14, 15, 16):
        folder = tmp_path / f"stop-{stop}"
        run = accumulates(folder, 1, stop)
        assert run.wait() == 143, run.errors
        assert run.report["checkpoint"]["step"] == run.report["step"] == 4
        run = accumulates(folder, 2, stop)
        assert run.wait() == 0, run.errors
        assert run.report["resumedFromStep"] == 4
        assert json.loads((folder / "result.json").read_text()) == expected


def test_a_checkpoint_of_another_model_is_an_error_that_says_so(tmp_path: Path) -> None:
    run = start(tmp_path, 1, "0", "plain")
    run.wait_until(lambda: step_of(run) >= 3)
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("nn.Linear(6, 16)", "nn.Linear(6, 16, bias=False)"))
    code, run = run_worker(
        tmp_path / "other",
        ["python", str(other), "0", "plain"],
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "GPUJOB_ATTEMPT": "2",
        },
    )
    assert code == 1
    assert run.report["failure"]["failureClass"] == "Checkpoint"
    assert "does not fit the script" in run.errors


def test_an_unmodified_script_stops_without_a_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    while True:\n"
        "        model(torch.ones(4, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "        print('step', 1, flush=True)\n"
        "        time.sleep(0.01)\n"
        "finally:\n"
        "    print('cleaned up')\n"
    )
    run = start_worker(tmp_path / "run", ["python", str(script)])
    run.wait_until(lambda: step_of(run) >= 1)
    run.send(signal.SIGTERM)
    assert run.wait() == 144
    assert run.output.endswith("cleaned up\n")
    assert run.report["phase"] == "draining"


@pytest.mark.promise("I13")
def test_without_a_safe_point_it_leaves_before_the_deadline(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(4, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "print('step', 1, flush=True)\n"
        "while True: pass\n"
    )
    run = start_worker(
        tmp_path / "run", ["python", str(script)], environment={"GPUJOB_GRACE_SECONDS": "1.5"}
    )
    run.wait_until(lambda: step_of(run) >= 1)
    run.send(signal.SIGTERM)
    assert run.wait() == 144
    assert "no safe point before the deadline" in " ".join(run.report["explain"])


def test_a_finished_run_stays_finished_when_told_to_stop_late(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, os, signal, time, torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(4, 2)).sum().backward()\n"
        "optimizer.step()\n"
    )
    code, run = run_worker(tmp_path / "run", ["python", str(script)])
    assert code == 0
    assert run.report["phase"] == "finished"
    stop = Stop(0.6, lambda why: pytest.fail(f"the run was over: {why}"))
    before = set(threading.enumerate())
    stop.watch()
    (watcher,) = set(threading.enumerate()) - before
    stop.end()
    stop.request("late", 0.6)
    watcher.join(10.0)
    assert not watcher.is_alive()


FORKED = """
import os, sys, torch
from torch import nn
from gpujob_worker import prepare
torch.set_num_threads(1)
net = nn.Linear(4, 1)
IN_PARENT
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
IN_CHILD
job = prepare(net, optimizer)
for _ in job.steps(5):
    optimizer.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); optimizer.step()
print("trained", flush=True)
"""
MADE = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"


@pytest.mark.parametrize("where", ["IN_PARENT", "IN_CHILD"])
def test_a_forked_child_has_a_run_of_its_own(where: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = FORKED.replace(where, MADE)
    script.write_text(text.replace("IN_PARENT", "").replace("IN_CHILD", ""))
    code, run = run_worker(tmp_path / "run", ["python", str(script)])
    assert code == 0, run.errors
    assert run.output == "trained\n"
    assert (run.report["phase"], run.report["step"]) == ("finished", 5), run.report
