"""What was put in force is taken back when the loss is lost or the steps are slower."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.report import Speedup, Timing
from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.control.rollback_guard import (
    CONFIRM_STEPS,
    DIVERGED_CHECKS,
    LossDivergence,
    RollbackGuard,
)
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import tuned
from gpujob_worker.tune.tuner import Tuner
from tests.harness.trained_models import trained_model
from tests.harness.worker_process import run_worker


def test_a_loss_is_lost_when_it_stays_far_above_its_start() -> None:
    watch = LossDivergence()
    for loss in (2.0, 1.8, 2.4, math.nan):
        watch.starts(loss)
    assert [watch.verdict(loss) for loss in (1.0, 7.0, 8.0, 1.0, 9.0, 9.0)] == [None] * 6
    assert watch.verdict(9.0) == "the loss diverges: 9 after 2.4 in the first steps"
    assert watch.verdict(math.inf) == "the loss is not finite any more"


@pytest.mark.parametrize("first", [[], [-3.0, -2.0], [0.0, 4.0]])
def test_ordinary_losses_are_left_alone(first: list[float]) -> None:
    watch = LossDivergence(first)
    assert [watch.verdict(loss) for loss in (1.9, 1.5, 2.0, 1.9, 1.0)] == [None] * 5


@pytest.fixture
def model() -> TrainedModel:
    session = Session(Environment(settings=Settings()))
    module = nn.Linear(2, 2)
    root = Root(module, lambda _: None)
    root.install()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = trained_model(session, root)
    vars(module)["optimizer"] = optimizer  # the script keeps it
    found.facts.saw(optimizer)
    found.first.use(Tuner(Settings(), Features(), session.log, 1.0))
    plan = RootPlan(autocast=torch.bfloat16)
    found.first.choices.applied = Applied(plan, fused=True, loader_workers=2)
    found.optimizers.fuse([optimizer])
    found.apply(optimizer)
    return found


@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_what_modules_beside_took_over_is_rolled_back_too(limit: int | None) -> None:
    """But for what keeps a memory limit."""
    session = Session(Environment(settings=Settings(), memory_limit_bytes=limit))
    modules = [nn.Linear(2, 2), nn.Linear(2, 2)]
    roots = [Root(module, lambda _: None) for module in modules]
    for root in roots:
        root.install()
    found = trained_model(session, *roots)
    found.first.use(Tuner(Settings(), Features(), session.log, 1.0))
    plan = RootPlan(autocast=torch.bfloat16, rows_per_step=2)
    found.first.choices.applied = Applied(plan)
    further = found.choose_for(roots[1])
    further.choices.applied = Applied(plan)
    found.apply()
    assert [root.plan for root in roots] == [plan, plan]
    found.roll_back("why")
    kept = plan.memory_only() if limit is not None else RootPlan()
    assert [root.plan for root in roots] == [kept, kept]


def test_a_roll_back_takes_everything_back_for_good(model: TrainedModel) -> None:
    root, optimizer, tuner = model.roots[0], model.facts.optimizers[0], model.first.tuner
    assert root.plan.autocast is torch.bfloat16
    assert optimizer.param_groups[0]["fused"] is True
    session, gain = model.session, Speedup(1.42, 1.38, 1.46, 10)
    session.state.gained(tuned(model.first.applied), gain)
    model.report()
    assert session.report().speedup == gain
    model.session.state.loss_tensor = torch.tensor(1.0)
    guardian = RollbackGuard(model.session, model)
    guardian.first_steps()
    model.session.state.loss_tensor = torch.tensor(50.0)
    for check in range(DIVERGED_CHECKS):
        assert not model.rolled_back
        guardian.step(20 * (check + 1) + 20)
    assert model.rolled_back
    assert session.report().speedup is None
    refused = "speed-up skipped: not measured with the settings now in force"
    assert session.log.line("speed-up") == refused
    assert root.plan == RootPlan()
    assert optimizer.param_groups[0]["fused"] is None
    assert model.session.state.tuned == TunedSettings(data_loader_workers=2)
    assert tuner is not None
    assert tuner.applied.plan == RootPlan()
    assert model.session.log.lines[-1] == (
        "roll-back to plain settings: the loss diverges: 50 after 1 in the first steps"
    )


def test_a_roll_back_leaves_what_keeps_a_memory_limit() -> None:
    session = Session(Environment(memory_limit_bytes=2**40))
    module = nn.Linear(2, 2)
    root = Root(module, lambda _: None)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = trained_model(session, root)
    vars(module)["optimizer"] = optimizer  # the script keeps it
    found.facts.saw(optimizer)
    found.first.use(Tuner(Settings(), Features(), session.log, 1.0))
    plan = RootPlan(autocast=torch.bfloat16, rows_per_step=4, keeps_chunk=False)
    found.first.choices.applied = Applied(plan, fused=True, optimizer_offload=True)
    found.optimizers.fuse([optimizer])
    found.apply(optimizer)
    assert optimizer.param_groups[0]["fused"] is True
    assert found.optimizer_offload is not None
    found.roll_back("a test")
    assert root.plan == RootPlan(rows_per_step=4, keeps_chunk=False)
    assert optimizer.param_groups[0]["fused"] is None
    assert found.optimizer_offload is not None
    assert session.state.tuned == TunedSettings(batch_per_step=4, optimizer_offload=True)
    session.state.loss_tensor = torch.tensor(math.nan)
    RollbackGuard(session, found).step(20)
    assert session.log.line("roll-back").endswith("a test"), "it is done once"


def test_a_split_that_does_not_keep_the_limit_is_made_finer_and_says_so() -> None:
    session = Session(Environment(memory_limit_bytes=1000))
    root = Root(nn.Linear(2, 2), lambda _: None)
    found = trained_model(session, root)
    found.first.use(Tuner(Settings(), Features(), session.log, 1.0))
    found.first.choices.applied = Applied(RootPlan(rows_per_step=12))
    found.apply()
    RollbackGuard(session, found).step(CONFIRM_STEPS)
    assert root.plan == RootPlan(rows_per_step=6, keeps_chunk=False)
    said = session.log.line("memory limit")
    assert said.endswith("measured, limit 1000 B; steps of 6 from now on")


@pytest.mark.parametrize(("seconds", "rolled_back"), [(0.105, False), (0.12, True)])
def test_slower_steps_take_it_back(model: TrainedModel, seconds: float, rolled_back: bool) -> None:
    model.session.state.baseline = Timing(0.1, 0)
    model.session.meter.window.seconds.extend([seconds] * 3)
    RollbackGuard(model.session, model).step(CONFIRM_STEPS)
    assert model.rolled_back is rolled_back


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(5)
net = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(16, 8)
for i in range(50):
    opt.zero_grad(); loss = (net(x) - 1).square().mean()
    (loss * (float("nan") if i >= 25 else 1.0)).backward(); opt.step()
"""


def test_known_settings_are_watched_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    settings = {"tuned": {"batchPerStep": 4}}
    code, run = run_worker(tmp_path, ["python", str(script)], settings=settings)
    assert code == 0, run.errors
    said = run.report["explain"]
    assert "batch split applied: 16 samples in steps of 4, from an earlier run" in said
    assert "roll-back to plain settings: the loss is not finite any more" in said
    assert "batchPerStep" not in run.report["tuned"]


class LaterBranch(nn.Module):
    """After some steps it takes a way that autocast does not fit; worse, it may simply fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.late, self.broken = nn.Linear(4, 4), False, False

    def forward(self, x: Any) -> Any:
        if self.broken:
            raise IndexError("the script's own")
        if self.late:
            return torch.zeros(4, 4).index_add_(0, torch.arange(len(x)), self.layer(x))
        return self.layer(x)


def test_a_call_that_fails_under_the_settings_alone_is_made_as_written() -> None:
    module = LaterBranch()
    session = Session(Environment())
    root = Root(module, lambda _: None)
    model = trained_model(session, root)
    root.install(RollbackGuard(session, model).call_failed)
    model.first.applied = Applied(RootPlan(autocast=torch.bfloat16, rows_per_step=2))
    root.plan = model.first.applied.plan
    x = torch.randn(4, 4)
    module.broken = True
    with pytest.raises(IndexError, match="own") as raised:
        module(x)
    assert raised.value.__context__ is None
    assert not model.rolled_back
    module.broken, module.late = False, True
    with torch.no_grad():
        expected = module(x)
    output = module(x)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert model.rolled_back
    assert root.plan.autocast is None
    said = session.log.line("roll-back")
    assert "a call of the model failed with it, RuntimeError: index_add_()" in said


@pytest.mark.parametrize("alone", [True, False])
def test_modules_of_which_nothing_learns_are_rolled_back_too(
    alone: bool, model: TrainedModel
) -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    root = model.meet_frozen(frozen)
    assert root is not None
    model.frozen[0].log.applied("precision", "bfloat16")
    model.frozen[0].run_with(RootPlan(autocast=torch.bfloat16))
    assert root.plan.autocast is torch.bfloat16
    assert model.has_lowered_frozen
    if alone:
        model.roll_back_setting("precision", "why")
    else:
        model.roll_back("why")
    assert root.plan == RootPlan()
    said = model.session.log.line("precision of frozen Linear")
    assert said == "precision of frozen Linear skipped: rolled back: why"
