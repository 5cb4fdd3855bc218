"""The fused kernel of an optimizer is compared by what it adds to the parameters."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings
from gpujob_worker.probe.compare import Speedup, update_error
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune import tuner as tuner_module
from gpujob_worker.tune.trial import GPU_NOISE
from gpujob_worker.tune.tuner import UPDATE_ERROR_MAX, Tuner

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
LEARNING_RATES = (1e-2, 1e-4, 1e-6, 0.0)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts as twice as fast; its numbers are real."""

    def twice(*args: Any, **kwargs: Any) -> Speedup:
        del args, kwargs
        return Speedup(2.0, 1.9, 2.1, 5)

    monkeypatch.setattr(tuner_module, "measure_speedup", twice)


def in_training(kind: str, lr: float, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """An optimizer before its second step, of parameters far larger than its steps."""
    torch.manual_seed(3)
    parameters = [nn.Parameter(2 * torch.randn(*shape).to(dtype)) for shape in ((300, 40), (40,))]
    optimizer = OPTIMIZERS[kind](parameters, lr=lr)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return optimizer


def tried(optimizer: torch.optim.Optimizer) -> tuple[bool, str]:
    log = DecisionLog()
    tuner = Tuner(Settings(), Features(), log, 60.0)
    return tuner.fused_optimizer(optimizer), log.line("fused optimizer")


@pytest.mark.usefixtures("fast")
def test_the_factor_is_said_to_be_of_the_optimizers_step_alone() -> None:
    """Of a step whose forward and backward take most of the time it says little."""
    kept, said = tried(in_training("adamw", 1e-2))
    assert kept
    assert "2.00x (95 % 1.90 to 2.10, 5 pairs) of the optimizer's step alone; parameters" in said


def test_the_noise_of_a_run_is_known_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[float | None] = []

    def twice(*args: Any, noise: float | None = None, **kwargs: Any) -> Speedup:
        del args, kwargs
        known.append(noise)
        return Speedup(2.0, 1.9, 2.1, 1)

    monkeypatch.setattr(tuner_module, "measure_speedup", twice)
    parameter = nn.Parameter(torch.ones(4, device=device))
    parameter.grad = torch.ones(4, device=device)
    optimizer = torch.optim.AdamW([parameter])
    optimizer.step()
    fused, line = tried(optimizer)
    assert fused, line
    assert known == [GPU_NOISE if device == "cuda" else None]


def scaled(kernel: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """The kernel with updates that are wrong by a factor."""

    def step(*args: Any, lr: Any, **kwargs: Any) -> Any:
        return kernel(*args, lr=factor * lr, **kwargs)

    return step


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_updates_that_are_wrong_by_a_tenth_are_refused(
    kind: str, factor: float, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"_fused_{kind}_"
    monkeypatch.setattr(torch, name, scaled(getattr(torch, name), factor))
    taken, line = tried(in_training(kind, lr=1e-4))
    assert not taken, line
    assert line.startswith("fused optimizer skipped: numbers disagree: parameters differ by ")
    _, _, error = line.rpartition(" after a step, updates by ")
    assert float(error) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("lr", LEARNING_RATES)
def test_torchs_own_kernels_are_taken(kind: str, lr: float, fast: None) -> None:
    taken, line = tried(in_training(kind, lr))
    assert taken, line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_rounding_of_other_types_is_no_error_either(dtype: torch.dtype, fast: None) -> None:
    taken, line = tried(in_training("adamw", 1e-4, dtype))
    assert taken, line


def test_a_parameters_own_rounding_is_no_error_of_its_update() -> None:
    start = [torch.full((1000,), 3.0)]
    updated = [start[0] - 1e-6]
    unit = torch.finfo(torch.float32).eps * 2
    rounded = [updated[0] + unit * (torch.arange(1000) % 2)]
    assert float((rounded[0] - updated[0]).abs().max()) > 0.2e-6, "far from the same update"
    assert update_error(start, updated, rounded) == 0.0
    further = [updated[0] - 1e-6]
    assert update_error(start, updated, further) > 100 * UPDATE_ERROR_MAX


def test_an_update_of_nothing_has_no_error_and_no_number_is_infinitely_far() -> None:
    start = [torch.tensor([1.0, 2.0])]
    assert update_error(start, start, start) == 0.0
    assert update_error(start, start, [torch.tensor([1.0, 2.1])]) == math.inf
    assert update_error(start, [start[0] + 1], [torch.tensor([2.0, math.nan])]) == math.inf
    assert update_error(start, [start[0] + 1], [torch.tensor([2.0, math.inf])]) == math.inf
