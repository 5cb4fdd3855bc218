"""What a report says of a step: of all its batches, and of the loss that the script means."""

from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import compare_with_declared
from tests.harness.worker_process import run_worker

ACCUMULATES = """
import sys, torch
from torch import nn
parts = int(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
x, y = torch.randn(64, 32), torch.randint(10, (64,))
for _ in range(10):
    optimizer.zero_grad()
    for a, b in zip(x.chunk(parts), y.chunk(parts)):
        (nn.functional.cross_entropy(model(a), b) / parts).backward()
    optimizer.step()
"""
PAIRS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
x = torch.randn(32, 32)
for _ in range(10):
    optimizer.zero_grad()
    (model(x) - model(x + 0.1)).square().mean().backward()
    optimizer.step()
"""
SCALES = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10)
x, y = torch.randn(64, 16), torch.randint(10, (64,))
for _ in range(120):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item(), scaler.get_scale())
"""
MEASURED_ONLY = {"mode": "Recommend", "compile": "Off"}


def report_of(
    folder: Path, script: str, *arguments: str, batch_total: int | None = None
) -> dict[str, Any]:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    code, run = run_worker(
        folder,
        [str(folder / "train.py"), *arguments],
        settings={**MEASURED_ONLY, "batchTotal": batch_total},
        options=("--explain", "--tuning-seconds", "1"),
    )
    assert code == 0, run.errors
    return {**run.report, "output": run.output}


def samples(report: dict[str, Any]) -> float:
    timing = report["baseline"]
    return timing["samplesPerSecond"] * timing["stepSeconds"]


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (64, "batch size 64 samples in a step, as declared"),
        (
            256,
            "batch size differs: a step takes 64 samples (the script), and "
            "spec.optimize.batchSize.total declares 256; nothing is changed",
        ),
        (None, None),
    ],
)
def test_a_declared_batch_is_compared_with_the_first_step(
    tmp_path: Path, declared: int | None, line: str | None
) -> None:
    report = report_of(tmp_path / "run", ACCUMULATES, "8", batch_total=declared)
    about = [one for one in report["explain"] if one.startswith("batch size")]
    assert about == ([] if line is None else [line])


def test_the_declared_batch_is_that_of_all_processes() -> None:
    log = DecisionLog()
    compare_with_declared(64, 16, 4, log)
    compare_with_declared(64, 3, 4, log)  # the last batch of a pass is smaller
    assert log.lines == ("batch size 64 samples in a step, as declared",)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    whole = report_of(tmp_path / "whole", ACCUMULATES, "1")
    parts = report_of(tmp_path / "parts", ACCUMULATES, "8")
    assert samples(whole) == pytest.approx(64)
    assert samples(parts) == pytest.approx(64)
    assert whole["efficiency"]["stepFlop"] > 0
    assert parts["efficiency"]["stepFlop"] == pytest.approx(whole["efficiency"]["stepFlop"])


def test_two_calls_under_one_loss_are_of_the_same_samples(tmp_path: Path) -> None:
    once = report_of(tmp_path / "once", ACCUMULATES, "1")
    pairs = report_of(tmp_path / "pairs", PAIRS)
    assert samples(pairs) == pytest.approx(32)
    # Each of its two calls has half of the rows.
    assert pairs["efficiency"]["stepFlop"] == pytest.approx(once["efficiency"]["stepFlop"])


@pytest.mark.promise("I16")
def test_a_loss_that_the_script_scales_is_reported_and_judged_unscaled(tmp_path: Path) -> None:
    """Its scale doubles every ten steps: four thousand times the first one at the end."""
    report = report_of(tmp_path / "run", SCALES)
    loss, scale = map(float, report["output"].split())
    assert scale == 1024.0 * 2**12
    assert report["loss"] == pytest.approx(loss)
    assert not [line for line in report["explain"] if "roll-back" in line]


def test_a_run_with_known_settings_that_nothing_can_be_tuned_in_says_so(tmp_path: Path) -> None:
    """More steps than are measured first, and none was too few."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([weight], 0.1)\n"
        "for _ in range(10):\n"
        "    optimizer.zero_grad(); weight.square().sum().backward(); optimizer.step()\n"
    )
    settings = {"mode": "Auto", "tuned": {"precision": "bfloat16"}}
    code, run = run_worker(tmp_path, ["python", str(script)], settings=settings)
    assert code == 0, run.errors
    text = "\n".join(run.report["explain"])
    assert "tuning skipped: 10 steps were made, and nothing that could be tuned" in text
    assert "of the 7 steps" not in text
