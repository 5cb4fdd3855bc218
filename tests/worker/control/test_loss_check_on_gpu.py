"""Looks at the loss on a GPU: queued kernels, masks that go by type, random states of its own."""

import copy
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpujob_api.settings import Settings
from gpujob_worker.control.loss_check import FIRST_STEPS, LOOKS_NEEDED, LossCheck
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.side_effects import RandomStates
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import ImitatedGpu, installed
from tests.harness.trained_models import trained_model

pytestmark = pytest.mark.any_torch
HALF = RootPlan(autocast=torch.bfloat16)
Loss = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def gpu() -> Generator[ImitatedGpu]:
    with installed() as found:
        yield found


class Run:
    """A module on the GPU in bfloat16, of which every step takes a minute."""

    def __init__(self, module: nn.Module, *, looks: bool = True) -> None:
        session = Session(Environment(settings=Settings()))
        self.module, self.root = module.to("cuda"), Root(module, lambda _: None)
        self.root.install()
        self.root.settled, self.root.asks = True, False
        model = trained_model(session, self.root)
        model.first.tuner = Tuner(Settings(), Features(), session.log, 1.0)
        model.first.tuner.applied = Applied(HALF)
        session.log.applied("precision", "1.50x")
        model.apply()
        self.optimizer = torch.optim.Adam(module.parameters(), 1e-3)
        self.log, self.steps, self.looked = session.log, 0, list[int]()
        guard = RollbackGuard(session, model)
        check = LossCheck(session, model, guard.loss_changed, lambda: 60.0 * self.steps)
        self.check = check if looks else None

    def step(self, x: torch.Tensor, loss_of: Loss) -> None:
        if self.root.check is not None:
            self.looked.append(self.steps)
        loss = loss_of(self.module(x))
        if self.check is not None:
            self.check.saw_loss(loss.detach())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.check is not None:
            self.check.step(self.steps)


def test_what_changes_the_loss_is_rolled_back(gpu: ImitatedGpu) -> None:
    """Near 300 every output is rounded to 300, where its loss is nothing."""
    torch.manual_seed(0)
    last = nn.Linear(8, 8)
    nn.init.constant_(last.bias, 300.0)
    run, x = Run(nn.Sequential(nn.Linear(8, 8), last)), torch.randn(64, 8, device="cuda")
    for _ in range(FIRST_STEPS + LOOKS_NEEDED):
        run.step(x, lambda out: (out - 300.0).square().mean())
    assert run.looked == [FIRST_STEPS + n for n in range(LOOKS_NEEDED)]
    assert run.root.plan == RootPlan()
    line = run.log.line("precision")
    assert "precision skipped: rolled back: in 3 looks of 3 it changes the loss by" in line


class Dropping(nn.Module):
    """Draws for masks that go by type, counts and normalizes."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.norm, self.outward = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(8, 4)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        x = self.dropout(self.norm(self.inward(x)))
        heads = x.view(-1, 1, 2, 8)
        x = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)
        return self.outward(x.mean((1, 2)))


def trained(steps: int, *, looks: bool) -> tuple[Run, Any, RandomStates]:
    torch.manual_seed(1)
    run, target = Run(Dropping(), looks=looks), torch.randint(4, (64,)).to("cuda")
    for _ in range(steps):
        x = torch.randn(64, 8, device="cuda")
        run.step(x, lambda out: functional.cross_entropy(out, target))
    return run, copy.deepcopy(run.module.state_dict()), RandomStates()


def test_other_masks_are_no_change_and_a_look_leaves_nothing_behind(gpu: ImitatedGpu) -> None:
    steps = FIRST_STEPS + 2
    run, state, random = trained(steps, looks=True)
    assert run.looked == [FIRST_STEPS]
    assert run.root.plan == HALF
    assert "the loss differs by" in run.log.line("loss check")
    _, plain, other = trained(steps, looks=False)
    assert all(map(torch.equal, state.values(), plain.values()))
    assert torch.equal(random.torch, other.torch)
    assert all(map(torch.equal, random.cuda, other.cuda))


def test_steps_without_a_look_do_not_wait_for_the_gpu(gpu: ImitatedGpu) -> None:
    run, x = Run(nn.Linear(8, 4)), torch.randn(64, 8, device="cuda")
    waits: list[int] = []
    for _ in range(FIRST_STEPS + 6):
        before = gpu.clock.waits
        run.step(x, lambda out: out.square().mean())
        waits.append(gpu.clock.waits - before)
    assert run.looked == [FIRST_STEPS]
    assert waits[FIRST_STEPS] > 0
    del waits[FIRST_STEPS]
    assert not any(waits)
