"""Which optimizers a run with known settings gives the fused kernel: those that were compared."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.control.startup import Startup
from gpujob_worker.control.tuned_optimizers import OPTIMIZERS_MAX
from gpujob_worker.control.tuning_run import TuningRun
from gpujob_worker.inject.fused_optimizer import OptimizerCopy, fused_in_force
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.tune.registry import tuned
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import GpuModel
from tests.harness.trained_models import trained_model
from tests.worker.tune.test_several_optimizers import SCRIPT, Measured, Run, stepped, trained

pytestmark = pytest.mark.timeout(240)

FOLDS = """
import json, torch; from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 16)
kept, fused = [], []
for fold in range(6):
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    made = [torch.optim.Adam(model[at].parameters(), 1e-3) for at in (0, 2)]
    for step in range(8):
        model(x).square().mean().backward()
        for optimizer in made: optimizer.step()
        for optimizer in made: optimizer.zero_grad()
    fused.append([optimizer.param_groups[0]["fused"] for optimizer in made])
    kept += made
print(json.dumps(fused))
"""
KNOWN = {"tuned": {"fusedOptimizer": True, "optimizersJudged": 2}}


FIRST, SECOND = "fused optimizer", "fused optimizer of Adam 2"


class Adopting:
    """A run that knows settings, at the first steps of a model with a module for each optimizer."""

    def __init__(self, known: TunedSettings) -> None:
        self.session = Session(Environment(Settings(tuned=known)))
        self.session.state.start_with(known)
        session, settings = self.session, self.session.environment.settings
        self.tuner = Tuner(settings, session.features, session.log, 60.0)
        self.model = trained_model(session, tuner=self.tuner)
        self.startup = Startup(session, self.model)
        self.kept: list[Any] = []

    def optimizer(self, kind: Any = torch.optim.Adam, *, of_this_model: bool = True) -> Any:
        module = nn.Linear(2, 2)
        self.kept.append(module)
        if of_this_model:
            self.model.meet(Root(module, lambda _: None))
        return kind(module.parameters(), lr=0.1)

    def steps(self, *optimizers: torch.optim.Optimizer) -> list[bool]:
        """Which of them have the kernel once each has made its first step."""
        for optimizer in optimizers:
            first = self.model.optimizers.first is None
            begins = self.startup.before_first_step if first else None
            (begins or self.startup.before_first_step_of_another)(optimizer)
            self.model.facts.saw(optimizer)
        return [fused_in_force(optimizer) for optimizer in optimizers]

    @property
    def said(self) -> list[str]:
        return list(self.session.log.lines)


def fused_in(folder: Path, text: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """What the script prints of its optimizers, and what is said of them."""
    run = trained(folder, None, settings, text)
    return json.loads(run.output), run.errors


def test_optimizers_of_earlier_models_that_a_script_keeps_do_not_count(tmp_path: Path) -> None:
    fused, said = fused_in(tmp_path / "run", FOLDS, KNOWN)
    assert fused == [[True, True]] * 6, said


@pytest.mark.parametrize("earlier", [1, OPTIMIZERS_MAX, 3 * OPTIMIZERS_MAX])
def test_names_number_the_optimizers_of_this_model(earlier: int) -> None:
    run = Adopting(TunedSettings(fused_optimizer=True, optimizers_judged=2))
    kept = [run.optimizer(of_this_model=False) for _ in range(earlier)]
    for optimizer in kept:
        run.model.facts.saw(optimizer)
    assert run.steps(run.optimizer(), run.optimizer()) == [True, True], run.said
    known = "applied: from an earlier run"
    assert run.said == [f"{FIRST} {known}", f"{SECOND} {known}"]


def test_more_optimizers_of_this_model_than_are_looked_at_step_as_written() -> None:
    run = Adopting(TunedSettings(fused_optimizer=True, optimizers_judged=OPTIMIZERS_MAX + 1))
    optimizers = [run.optimizer() for _ in range(OPTIMIZERS_MAX + 1)]
    assert run.steps(*optimizers) == [True] * OPTIMIZERS_MAX + [False]


COUNTED = SCRIPT.replace("for _ in range(steps)", "for step in range(steps)")
LATE = COUNTED.replace("go.step();", "go.step() if step >= 12 else None;")


@pytest.mark.parametrize(("judged", "fused"), [(1, None), (2, True)])
def test_an_optimizer_that_the_earlier_run_did_not_compare_steps_as_written(
    judged: int, fused: bool | None, tmp_path: Path
) -> None:
    """A generator that began after the earlier run's tuning steps at once in a resumed run."""
    known = {"tuned": {"fusedOptimizer": True, "optimizersJudged": judged}}
    run = trained(tmp_path / "run", None, known)
    assert json.loads(run.output)[0] == [True, fused], run.errors
    assert run.report["tuned"]["optimizersJudged"] == judged, "the run after it knows no more"


def test_a_run_whose_second_optimizer_begins_late_leaves_it_to_no_later_run(
    tmp_path: Path,
) -> None:
    gpu = GpuModel()
    first = trained(tmp_path / "first", gpu, {}, LATE)
    assert json.loads(first.output)[0] == [True, None], first.errors
    assert first.report["tuned"]["fusedOptimizer"] is True
    resumed = trained(tmp_path / "resumed", gpu, {"tuned": first.report["tuned"]})
    assert json.loads(resumed.output)[0] == [True, None], resumed.errors


def test_settings_from_before_the_number_was_kept_are_for_the_first_optimizer() -> None:
    run = Adopting(TunedSettings(fused_optimizer=True))
    assert run.steps(run.optimizer(), run.optimizer()) == [True, False]


def test_an_optimizer_without_a_kernel_counts_as_judged() -> None:
    """As Muon beside AdamW: the first one is refused in every run."""
    run = Adopting(TunedSettings(fused_optimizer=True, optimizers_judged=2))
    optimizers = run.optimizer(torch.optim.Adadelta), run.optimizer(), run.optimizer()
    assert run.steps(*optimizers) == [False, True, False]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_tuning_keeps_how_many_it_judged(
    count: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Measured(monkeypatch)
    run = Run(*(stepped(torch.optim.Adam, device) for _ in range(count)))
    assert run.tune() == [True] * count
    expected = TunedSettings(fused_optimizer=True, optimizers_judged=count)
    assert run.tuner.tuned() == expected
    run.model.roll_back("a test")
    assert tuned(run.model.first.applied) == TunedSettings()


def without_memory(_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """For copies of the second optimizer, which is larger."""
    monkeypatch.setattr(TuningRun, "_free_bytes", 10_000)


def without_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([True, False])
    rule = run.tuner._acceptance_rule  # pyright: ignore[reportPrivateUsage]

    def in_time(*_: Any, **__: Any) -> bool:
        return next(times)

    monkeypatch.setattr(rule, "in_time", in_time)


def that_fails(_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = OptimizerCopy.step_seconds, list[Any]()

    def step_seconds(self: OptimizerCopy) -> float:
        seen.append(self)
        if len(seen) > 2:
            raise ValueError("a test")
        return plain(self)

    monkeypatch.setattr(OptimizerCopy, "step_seconds", step_seconds)


@pytest.mark.parametrize("spoil", [without_memory, without_time, that_fails])
def test_where_one_could_not_be_compared_the_next_run_begins_with_none(
    spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Measured(monkeypatch)
    large = nn.Parameter(torch.ones(4096))
    large.grad = torch.ones(4096)
    second = torch.optim.Adam([large], lr=0.01)
    second.step()
    run = Run(stepped(torch.optim.Adam, "cpu"), second)
    spoil(run, monkeypatch)
    assert run.tune() == [True, False], run.session.log.lines
    assert run.model.first.applied.fused
    assert run.tuner.tuned() == TunedSettings()
