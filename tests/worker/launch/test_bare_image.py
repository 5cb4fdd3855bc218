"""An image that has torch and nothing else that we use: all but checkpoints is as in any image."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(240)

TRAINS = """
import torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
for step in range(12):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
print("trained")
"""
ABSENT = "raise ModuleNotFoundError('No module named ' + repr(__name__), name=__name__)\n"


def trained_without(folder: Path, *packages: str, checkpoints: bool) -> dict[str, Any]:
    """The last report of a script where these packages cannot be imported."""
    (folder / "train.py").write_text(TRAINS)
    absent = folder / "absent"
    absent.mkdir()
    for package in packages:
        (absent / f"{package}.py").write_text(ABSENT)
    own = {k: v for k, v in os.environ.items() if not k.startswith("GPUJOB")}
    path = os.pathsep.join(filter(None, [str(absent), own.get("PYTHONPATH", "")]))
    variables = {
        "PYTHONPATH": path,
        "GPUJOB_SETTINGS": '{"mode": "Recommend", "compile": "Off"}',
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        **({"GPUJOB_CHECKPOINT_DIR": str(folder)} if checkpoints else {}),
    }
    command = [sys.executable, "-m", "gpujob_worker", "--explain", "--tuning-seconds", "1", "--"]
    done = subprocess.run(
        [*command, "python", "train.py"],
        cwd=folder,
        env={**own, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    return json.loads((folder / "termination").read_text())


def test_a_job_without_checkpoints_misses_nothing(tmp_path: Path) -> None:
    report = trained_without(tmp_path, "safetensors", "xxhash", checkpoints=False)
    assert report["step"] == 12
    assert report["current"]["stepSeconds"] > 0
    said = [line for line in report["explain"] if line.startswith(("everything", "resume"))]
    assert said == []


@pytest.mark.parametrize("package", ["safetensors", "xxhash"])
def test_what_checkpoints_miss_is_said_and_the_rest_goes_on(package: str, tmp_path: Path) -> None:
    report = trained_without(tmp_path, package, checkpoints=True)
    assert report["current"]["stepSeconds"] > 0
    said = [line for line in report["explain"] if line.startswith(("everything", "resume"))]
    assert said == [f"resume skipped: there is no package {package} here"]
