"""Below the torch and the Python of our tests a script is measured, and runs as written.

With a real torch below 2.8 the same holds: `TESTS=tests/worker/launch/test_measured_only.py`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_worker import process

pytestmark = pytest.mark.timeout(240)

TRAINS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
# It trains as well, with an optimizer of its own.
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
critics = torch.optim.Adam(critic.parameters(), 1e-2)
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
for epoch in range(int(sys.argv[1])):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        critics.zero_grad()
        critic(net(a).detach() - b).square().mean().backward()
        critics.step()
    print(epoch, loss.item(), flush=True)
sys.exit(3)
"""
ANSWERS = """
import sys
import torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).eval()
with torch.no_grad():
    for _ in range(int(sys.argv[1])): print(net(torch.randn(16, 8)).sum().item(), flush=True)
"""
EPOCHS, STEPS_OF_AN_EPOCH = 8, 4
# As if this torch, or this Python, were below those that the worker's tests ran.
NEWER = "from gpujob_worker import process; process.{name}_TESTED = (99, 1)\n"
FOUND = {"TORCH": f"torch {torch.__version__}", "PYTHON": "Python {}.{}".format(*sys.version_info)}
IS_BELOW = tuple(map(int, torch.__version__.split(".")[:2])) < process.TORCH_TESTED


def started(folder: Path, name: str, epochs: int, source: str = TRAINS) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(NEWER.format(name=name) + source)
    (folder / "checkpoints").mkdir()
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--"]
    return subprocess.Popen(
        [*own, "python", "train.py", str(epochs)],
        cwd=folder,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("GPUJOB")},
            "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "termination").read_text())


@pytest.mark.parametrize("name", ["TORCH", "PYTHON"])
def test_a_script_is_measured_and_runs_as_written(name: str, tmp_path: Path) -> None:
    if name == "PYTHON" and IS_BELOW:
        pytest.skip("of both reasons torch's is the one that is said")
    with started(tmp_path, name, EPOCHS) as run:
        output, errors = run.communicate(timeout=200)
    plain = subprocess.run(
        [sys.executable, "-c", TRAINS, str(EPOCHS)], capture_output=True, text=True, timeout=100
    )
    why = f"everything skipped: {FOUND[name]} is measured only; from 99.1 on it is tuned"
    assert (run.returncode, output) == (3, plain.stdout), errors
    assert errors == f"gpujob: {why}\n"
    report = report_in(tmp_path)
    assert report["explain"] == [why]
    assert report["step"] == EPOCHS * STEPS_OF_AN_EPOCH
    assert report["current"]["stepSeconds"] > 0
    assert report["current"]["peakMemoryBytes"] > 0
    assert report["failure"]["message"] == "the script ended with exit code 3"
    assert not {"tuned", "speedup", "baseline"} & report.keys()


def test_the_calls_of_a_script_that_only_answers_are_measured(tmp_path: Path) -> None:
    with started(tmp_path, "TORCH", 12, ANSWERS) as run:
        output, errors = run.communicate(timeout=200)
    plain = subprocess.run(
        [sys.executable, "-c", ANSWERS, "12"], capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, output) == (0, plain.stdout), errors
    report = report_in(tmp_path)
    assert (report["task"], report["step"]) == ("Inference", 12)
    assert report["current"]["latency"]["p99Milliseconds"] > 0
    assert report["current"]["samplesPerSecond"] > 0
    assert not {"tuned", "speedup", "baseline"} & report.keys()


def test_a_stop_ends_it_and_nothing_is_saved(tmp_path: Path) -> None:
    """How a loop is resumed reaches far into torch, and no test runs it there."""
    with started(tmp_path, "TORCH", 10**6) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith("0 ")
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=200)
    assert run.returncode == 144, errors
    assert report_in(tmp_path)["phase"] == "draining"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["seed"]
