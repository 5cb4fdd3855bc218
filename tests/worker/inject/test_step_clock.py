"""Steps are counted of one optimizer after another; what the script drops is not held."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.process_flags import ConvolutionAutotuning
from gpujob_worker.inject.script_facts import ScriptFacts, watch_optimizers
from gpujob_worker.inject.step_clock import STEPS_OF_ANOTHER, StepClock
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def test_the_first_optimizer_counts_while_others_take_turns() -> None:
    clock, generator, critics = StepClock(), optimizer(), [optimizer() for _ in range(3)]
    assert clock.ticks(generator)
    for _ in range(2 * STEPS_OF_ANOTHER):
        assert not any(clock.ticks(critic) for critic in critics)
        assert clock.ticks(generator)


def test_a_second_training_counts_once_the_first_is_dropped_or_over() -> None:
    clock, first, second = StepClock(), optimizer(), optimizer()
    assert clock.ticks(first)
    assert not clock.ticks(second)
    del first
    gc.collect()
    assert clock.ticks(second)
    assert clock.fresh
    assert clock.ticks(second)
    assert not clock.fresh
    third = optimizer()
    assert [clock.ticks(third) for _ in range(STEPS_OF_ANOTHER)].count(True) == 1
    assert clock.optimizer is third


def test_optimizers_and_models_are_the_scripts_to_drop() -> None:
    facts, gone = ScriptFacts(), optimizer()
    facts.saw(gone)
    facts.saw(gone)
    assert facts.optimizers == [gone]
    model = TrainedModel(Session(Environment()), facts)
    model.optimizers.lead(gone)
    module = nn.Linear(2, 2)
    root = Root(module, lambda _: None)
    root.install()
    model.meet(root)
    model.first.applied = Applied(RootPlan(autocast=torch.bfloat16), loader_workers=1)
    seen = weakref.ref(gone), weakref.ref(module)
    model.drop(root)
    del gone, module, root
    gc.collect()
    assert [found() for found in seen] == [None, None]
    assert (facts.optimizers, model.optimizers.first) == ([], None)
    assert model.first.applied.plan == RootPlan()
    model.roll_back("a test")  # with nothing there to take back from


def test_what_was_set_for_the_whole_process_goes_with_the_model() -> None:
    model = TrainedModel(Session(Environment()), ScriptFacts())
    root = Root(nn.Linear(2, 2), lambda _: None)
    model.meet(root)
    before = torch.backends.cudnn.benchmark
    root.plan = RootPlan(settings=(ConvolutionAutotuning(),))
    assert torch.backends.cudnn.benchmark
    model.drop(root)
    assert torch.backends.cudnn.benchmark is before is False


def test_each_optimizer_is_seen_once_it_has_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    seen: list[tuple[str, int]] = []

    def made(optimizer: torch.optim.Optimizer) -> None:
        seen.append((type(optimizer).__name__, len(optimizer.param_groups)))

    watch_optimizers(made)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        kind([torch.ones(1, requires_grad=True)])
    assert seen == [("SGD", 1), ("Adam", 1)]


def test_what_a_library_puts_around_the_class_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    seen: list[str] = []
    watch_optimizers(lambda _: seen.append("ours"))
    ours = torch.optim.Optimizer.__init__

    def librarys(self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append("library's")
        ours(self, *args, **kwargs)

    torch.optim.Optimizer.__init__ = librarys
    for _ in range(2):
        torch.optim.SGD([torch.ones(1, requires_grad=True)])
    assert seen == ["library's", "ours"] * 2
