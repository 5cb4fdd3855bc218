"""A script yields before each backward pass and after each step, and learns the same."""

from pathlib import Path
from typing import Any

import pytest

from gpujob_api.report import Reply
from tests.harness.report_receiver import Operator
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)

PAUSE_SECONDS = 0.02
STEPS = 5
PASSES = 3
# Each part of a step is longer than the longest pause, so all pauses are equally long.
SCRIPT = f"""
import time, torch
from gpujob_worker.run import yielding
yielding.PAUSE_SECONDS_MAX = {PAUSE_SECONDS}
torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range({STEPS}):
    for part in range({PASSES}):
        time.sleep(0.05)
        net(torch.randn(16, 8)).square().mean().backward()
    time.sleep(0.05)
    opt.step()
    opt.zero_grad()
print(net.weight.sum().item())
"""
BATCHES = 10
EVALUATION = f"""
data = torch.utils.data.TensorDataset(torch.randn({BATCHES}, 8))
for (batch,) in torch.utils.data.DataLoader(data):
    time.sleep(0.05)
    with torch.no_grad():
        net(batch)
"""


def trained(
    operator: Operator, folder: Path, percent: int, source: str = SCRIPT, **settings: Any
) -> tuple[str, Any]:
    """Returns what the script printed, and the seconds of the last report."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(source)
    reply = Reply(interval_seconds=60.0, yield_percent=percent)
    operator.answers = [(200, reply.to_text().encode())] * 100
    code, run = run_worker(
        folder,
        ["python", str(script)],
        settings=settings,
        environment={"GPUJOB_REPORT_URL": operator.url},
    )
    assert code == 0, run.errors
    return run.output, run.report.get("yieldedSeconds")


def test_a_script_yields_between_the_parts_of_its_steps(operator: Operator, tmp_path: Path) -> None:
    output, seconds = trained(operator, tmp_path / "yields", 50)
    # The first reply comes before the first pass. There is no pause before a part has ended.
    assert seconds == pytest.approx((STEPS * (PASSES + 1) - 1) * PAUSE_SECONDS)
    assert trained(operator, tmp_path / "alone", 0) == (output, 0.0)


def test_an_evaluation_yields_between_its_batches(operator: Operator, tmp_path: Path) -> None:
    pauses = STEPS * (PASSES + 1) - 1
    output, seconds = trained(operator, tmp_path / "yields", 50, SCRIPT + EVALUATION)
    # What comes between the last step and the first batch may be shorter than a pause.
    assert (pauses + BATCHES) * PAUSE_SECONDS <= seconds <= (pauses + BATCHES + 1) * PAUSE_SECONDS
    assert trained(operator, tmp_path / "alone", 0, SCRIPT + EVALUATION) == (output, 0.0)


def test_a_script_that_runs_unchanged_does_not_yield(operator: Operator, tmp_path: Path) -> None:
    assert trained(operator, tmp_path / "off", 50, mode="Off")[1] is None
