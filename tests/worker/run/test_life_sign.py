"""Batches of an evaluation are signs of life, which a report has beside the steps."""

from pathlib import Path

import pytest

from gpujob_worker.run.environment import Environment
from gpujob_worker.run.life_sign import LifeSign
from gpujob_worker.run.session import Session
from tests.harness.report_receiver import Operator
from tests.harness.worker_process import run_worker

SILENT_SECONDS = 5.0
SCRIPT = f"""
import time, torch
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    net(torch.randn(16, 8)).square().mean().backward()
    opt.step()
time.sleep({SILENT_SECONDS})
"""
EVALUATION = """
data = torch.utils.data.TensorDataset(torch.randn(4, 8))
for (batch,) in torch.utils.data.DataLoader(data):
    with torch.no_grad():
        net(batch)
"""


def test_the_time_counts_from_the_newest_sign() -> None:
    now = [100.0]
    sign = LifeSign(lambda: now[0])
    assert sign.idle_seconds is None
    sign.seen()
    now[0] += 30
    assert sign.idle_seconds == 30
    sign.seen()
    assert sign.idle_seconds == 0


def test_a_report_has_the_time_without_a_sign() -> None:
    session, now = Session(Environment()), [0.0]
    session.life_sign = LifeSign(lambda: now[0])
    assert session.report().idle_seconds is None
    session.life_sign.seen()
    now[0] = 7.0
    assert session.report().idle_seconds == 7.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["Off", "Recommend"])
@pytest.mark.parametrize(("more", "moves"), [("", False), (EVALUATION, True)])
def test_an_evaluation_shows_that_a_script_goes_on(
    operator: Operator, tmp_path: Path, mode: str, more: str, moves: bool
) -> None:
    """Without it, the last report has the pause after the last step."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + more)
    environment = {"GPUJOB_REPORT_URL": operator.url}
    code, run = run_worker(
        tmp_path, ["python", str(script)], settings={"mode": mode}, environment=environment
    )
    assert code == 0, run.errors
    assert (run.report["idleSeconds"] < SILENT_SECONDS) is moves
