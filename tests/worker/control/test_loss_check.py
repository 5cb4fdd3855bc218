"""What a lower precision does to the loss is looked at while a run goes on, and rolled back."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpujob_api.settings import Precision, Settings
from gpujob_worker.control.loss_check import (
    BETWEEN_STEPS,
    COST_MAX,
    FIRST_STEPS,
    LOOKS_NEEDED,
    LossCheck,
)
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.meter import Timed
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.tuner import Tuner
from tests.harness.trained_models import trained_model

pytestmark = pytest.mark.promise("I16")

HALF = RootPlan(autocast=torch.bfloat16)
Loss = Callable[[torch.Tensor], torch.Tensor]


class Run:
    """A model in training with settings in force, and a clock that the test moves."""

    def __init__(self, module: nn.Module, plan: RootPlan = HALF, look_seconds: float = 0.0) -> None:
        self.session = Session(Environment(settings=Settings()))
        self.module, self.root = module, Root(module, lambda _: None)
        self.root.install()
        self.root.settled, self.root.asks = True, False
        self.model = trained_model(self.session, self.root)
        self.model.first.tuner = Tuner(Settings(), Features(), self.session.log, 1.0)
        self.model.first.tuner.applied = Applied(plan)
        self.session.log.applied("precision", "1.50x")
        self.model.apply()
        self.guard = RollbackGuard(self.session, self.model)
        self.seconds, self.look_seconds, self.looks = 0.0, look_seconds, list[int]()
        self.looking = False
        self.check = LossCheck(
            self.session, self.model, self.guard.loss_changed, lambda: self.clock()
        )
        self.since, self.finite, self.always = 0, True, False

    def clock(self) -> float:
        """A look asks for the time twice, when it begins and when it ends."""
        self.seconds += self.look_seconds if self.looking else 0.0
        return self.seconds

    def step(self, x: Any, loss_of: Loss) -> None:
        """One that no look is made in is left out: nothing would be seen of it."""
        self.seconds += 1.0
        if self.root.check is not None or self.always:
            self.looks.append(self.since)
            self.looking = True
            output = self.module(x)
            self.looking = False
            loss = loss_of(output)
            self.check.saw_loss(loss.detach())
            loss.backward()
            self.finite = self.finite and bool(torch.isfinite(loss))
        self.since += 1
        self.check.step(self.since)

    @property
    def said(self) -> str:
        return self.session.log.line("precision")


def far_out(offset: float) -> nn.Sequential:
    """Predicts values that are far from zero, which half precision rounds."""
    torch.manual_seed(0)
    last = nn.Linear(8, 8)
    torch.nn.init.constant_(last.bias, offset)
    return nn.Sequential(nn.Linear(8, 8), last)


def near(offset: float) -> Loss:
    return lambda out: (out - offset).square().mean()


@pytest.mark.parametrize("offset", [300.0, 301.0])
def test_what_changes_the_loss_is_rolled_back_after_some_looks(offset: float) -> None:
    """Near 300 every output is rounded to 300, where its loss is nothing; near 301 it is 1 off."""
    run, x = Run(far_out(offset)), torch.randn(64, 8)
    for _ in range(FIRST_STEPS + BETWEEN_STEPS + LOOKS_NEEDED + 1):
        if run.root.plan != HALF:
            break
        run.step(x, near(offset))
    assert len(run.looks) <= LOOKS_NEEDED + 1
    assert run.root.plan == RootPlan()
    assert "precision skipped: rolled back: in 3 looks of 3 it changes the loss by" in run.said
    assert run.session.state.tuned is not None
    assert run.session.state.tuned.precision is Precision.FLOAT32
    assert not run.model.rolled_back, "nothing else was"


def test_outputs_too_large_to_be_kept_are_looked_at_in_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A language model's logits of one row of the batch may take more."""
    monkeypatch.setattr("gpujob_worker.control.loss_check.KEPT_BYTES_MAX", 4096)
    run, x = Run(far_out(300.0)), torch.randn(8, 512, 8)
    for _ in range(FIRST_STEPS + BETWEEN_STEPS + LOOKS_NEEDED + 1):
        if run.root.plan == HALF:
            run.step(x, near(300.0))
    assert "precision skipped: rolled back: in 3 looks of 3 it changes the loss by" in run.said


class WithLoss(nn.Module):
    """Returns its loss and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = far_out(300.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return near(300.0)(self.inner(x))


def test_a_module_that_returns_its_loss_alone_is_looked_at_with_the_whole_batch() -> None:
    run, x = Run(WithLoss()), torch.randn(64, 8)
    for _ in range(FIRST_STEPS + BETWEEN_STEPS + LOOKS_NEEDED + 1):
        if run.root.plan == HALF:
            run.step(x, lambda loss: loss)
    assert "precision skipped: rolled back: in 3 looks of 3 it changes the loss by" in run.said


class WithLossAndOutput(nn.Module):
    """As language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = far_out(300.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.inner(x)
        return near(300.0)(out.float()), out


@pytest.mark.parametrize("own_loss", [False, True])
def test_compiled_code_that_returns_its_loss_is_looked_at(own_loss: bool) -> None:
    """Autograd sees no way from its loss to its output."""
    torch.compiler.reset()
    module, x = WithLossAndOutput(), torch.randn(64, 8)
    compiled: Any = torch.compile(module._call_impl, backend="aot_eager", dynamic=False)
    signature = CallInputs.of((x,), {}).signature
    run = Run(module, replace(HALF, compiled=compiled, compiled_signature=signature))
    for _ in range(FIRST_STEPS + BETWEEN_STEPS + LOOKS_NEEDED + 3):
        if run.root.plan.autocast is not None:
            run.step(x, lambda both: near(300.0)(both[1]) if own_loss else both[0])
    assert "precision skipped: rolled back: in 3 looks of 3 it changes the loss by" in run.said


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_rounding_that_the_loss_does_not_see_stays(scale: float) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 4))
    run, target = Run(module), torch.randint(4, (64,))
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(3 * BETWEEN_STEPS):
        optimizer.zero_grad()
        run.step(torch.randn(64, 8), lambda out: functional.cross_entropy(out, target) * scale)
        optimizer.step()
    assert run.root.plan == HALF
    assert "precision applied" in run.said
    assert run.looks == [FIRST_STEPS + n * (BETWEEN_STEPS + 1) for n in range(3)]
    assert "the loss differs by" in run.session.log.line("loss check")


def test_a_loss_around_zero_is_compared_with_losses_near_it() -> None:
    """As of a policy: its mean is nothing, and what rounding does to it is chance."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    run = Run(module)
    for _ in range(5 * BETWEEN_STEPS):
        signs = torch.randn(64, 1)
        run.step(torch.randn(64, 8), lambda out, signs=signs: (out * signs).mean())
    assert run.root.plan == HALF, run.said


def test_looks_cost_a_small_part_of_the_run_and_say_which() -> None:
    run, x = Run(far_out(0.0), look_seconds=4.0), torch.randn(64, 8)
    run.session.meter.timed = Timed(steps=1, seconds=2.0)
    for _ in range(4000):
        run.step(x, near(0.0))
        assert len(run.looks) * run.look_seconds <= COST_MAX * run.seconds
    assert len(run.looks) >= 4
    assert "% of the run's time" in run.session.log.line("loss check")


class Everything(nn.Module):
    """Draws, counts, normalizes and keeps: whatever a look could leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.outward = nn.Dropout(0.3), nn.Linear(16, 4)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.outward(self.dropout(self.norm(self.inward(x))))


def test_a_look_leaves_nothing_behind() -> None:
    """The same training, bit for bit, with looks in every step and with none."""

    def trained(looks: bool) -> tuple[Any, ...]:
        torch.manual_seed(3)
        module = Everything()
        run = Run(module)
        run.always = True
        optimizer = torch.optim.Adam(module.parameters(), 1e-2)
        seen: list[torch.Tensor] = []
        for _ in range(8):
            optimizer.zero_grad()
            if looks:
                run.root.check = run.check._begin  # pyright: ignore[reportPrivateUsage]
                # A step that is made as written is another one.
                run.check._of(run.root).as_written = False  # pyright: ignore[reportPrivateUsage]
                run.check._root = run.root  # pyright: ignore[reportPrivateUsage]
            run.step(torch.randn(32, 8), near(1.0))
            seen += [p.grad.clone() for p in module.parameters() if p.grad is not None]
            optimizer.step()
        state = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
        assert (run.check._count > 0) is looks  # pyright: ignore[reportPrivateUsage]
        return state, seen, module.calls, torch.get_rng_state()

    (state, seen, calls, random), other = trained(looks=True), trained(looks=False)
    assert repr(state) == repr(other[0])
    assert all(itertools.starmap(torch.equal, zip(seen, other[1], strict=True)))
    assert calls == other[2]
    assert torch.equal(random, other[3])


class Draws(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        return super().forward(input) + torch.randn(len(input), 8)


def _hooked() -> nn.Module:
    module = far_out(300.0)
    module[0].register_forward_hook(_nothing)
    return module


def _nothing(*_: Any) -> None:
    """A hook of the script."""


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (lambda: Draws(8, 8), "forward draws random numbers, which differ by type"),
        (_hooked, "has hooks of the script"),
    ],
)
def test_where_a_look_is_not_safe_it_says_why(module: Callable[[], nn.Module], why: str) -> None:
    run, x = Run(module()), torch.randn(64, 8)
    for _ in range(2 * FIRST_STEPS):
        run.step(x, near(300.0))
    assert why in run.session.log.line("loss check")
    assert run.root.plan == HALF


def test_a_failing_look_leaves_the_script_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    run, x = Run(far_out(300.0)), torch.randn(64, 8)
    monkeypatch.setattr("gpujob_worker.tune.probe.RootProbe.outputs", fails)
    for _ in range(2 * FIRST_STEPS):
        run.step(x, near(300.0))
    assert run.finite
    assert run.looks == [FIRST_STEPS]
    assert "a look failed: RuntimeError" in run.session.log.line("loss check")


def test_modules_are_looked_at_in_turn_and_lose_the_precision_together() -> None:
    """The first one's loss sees no rounding; that of the other one does."""
    run, module, x = Run(far_out(0.0)), far_out(300.0), torch.randn(64, 8)
    other = Root(module, lambda _: None)
    other.install()
    other.settled, other.asks = True, False
    run.model.meet(other)
    further = run.model.choose_for(other)
    further.run_with(HALF)
    looks = 0
    for _ in range(FIRST_STEPS + 4 * BETWEEN_STEPS):
        run.seconds += 1.0
        if run.root.check is not None or other.check is not None:
            looks += 1
            loss = near(0.0)(run.module(x)) + near(300.0)(module(x))
            run.check.saw_loss(loss.detach())
            loss.backward()
        run.since += 1
        run.check.step(run.since)
    # One from either end of the difference, then the other module, of which three decide.
    assert 2 + LOOKS_NEEDED <= looks <= 3 + LOOKS_NEEDED
    assert run.root.plan == other.plan == RootPlan()
    assert "the loss differs by" in run.session.log.line("loss check")
    assert "the loss differs by" in further.log.line("loss check")
    assert "precision skipped: rolled back: in 3 looks of 3" in run.said


def test_a_backward_that_follows_another_optimizers_step_is_waited_for() -> None:
    """A discriminator is stepped between the generator's call and its backward."""
    run, x = Run(far_out(300.0)), torch.randn(64, 8)
    pending: torch.Tensor | None = None
    for _ in range(FIRST_STEPS + 2 * LOOKS_NEEDED + 2):
        run.seconds += 1.0
        if pending is not None:
            run.check.saw_loss(pending.detach())
            pending.backward()
            pending = None
        elif run.root.check is not None:
            pending = near(300.0)(run.module(x))
        run.since += 1
        run.check.step(run.since)
    assert "rolled back" in run.said


def test_what_is_as_written_is_not_looked_at() -> None:
    run, x = Run(far_out(300.0), RootPlan(rows_per_step=8)), torch.randn(64, 8)
    for _ in range(2 * FIRST_STEPS):
        run.step(x, near(300.0))
    assert run.looks == []
    assert run.session.log.line("loss check") == ""
