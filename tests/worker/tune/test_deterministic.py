"""A script that asks for deterministic algorithms: nothing is decided by the clock."""

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from gpujob_api.settings import Precision, Settings
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.trial import AcceptanceRule
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call
from tests.harness.worker_process import run_alone, run_worker

SCRIPT = """
import torch
torch.use_deterministic_algorithms(True)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(128, 64)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


@pytest.fixture
def deterministic() -> Generator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_what_is_asked_for_is_measured_and_nothing_else() -> None:
    log = DecisionLog()
    decision = AcceptanceRule(Settings(), log, 1.0)
    assert decision.measures("precision", forced=True)
    assert not decision.measures("precision", forced=False)
    (line,) = log.lines
    assert line.startswith("precision skipped: the script asks for deterministic algorithms; ")


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("precision", [Precision.AUTO, Precision.BFLOAT16])
def test_a_type_that_is_asked_for_is_put_in_force(precision: Precision) -> None:
    root, call = root_and_call(Model())
    tuner = Tuner(Settings(precision=precision), Features(), DecisionLog(), 5.0)
    tuner.speed(root, call)
    asked_for = precision is Precision.BFLOAT16
    assert (tuner.applied.plan.autocast is torch.bfloat16) is asked_for


def test_every_digit_is_that_of_the_script_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, found = run_worker(tmp_path / "run", ["python", str(script)], options=("--explain",))
    assert code == 0, found.errors
    code, plain = run_alone(tmp_path / "plain", [str(script)])
    assert code == 0, plain.errors
    assert found.output == plain.output
    line = "fused optimizer skipped: the script asks for deterministic algorithms"
    assert line in found.errors
    assert " applied: " not in found.errors
