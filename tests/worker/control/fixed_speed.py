"""Takes the clock out of a run's decisions: what is tried is always found faster."""

from typing import Any

import torch

from gpujob_api.report import Speedup as Gain
from gpujob_worker.control import loss_check, rollback_guard, schedule, tuning_run
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.compare import Speedup
from gpujob_worker.tune import frozen_modules, trial, tuner

_FASTER = Speedup(1.3, 1.25, 1.35, 8)


def everything_is_faster() -> None:
    """Call it in the script, after the worker's own modules were imported."""
    torch.set_num_threads(1)
    for module in (frozen_modules, trial, tuner):
        module.__dict__["measure_speedup"] = _faster
    tuner.__dict__["measure_gain"] = _gain
    rollback_guard.__dict__["SLOWER_ALLOWED"] = 1e9
    trial.__dict__["HOPELESS"] = 1e9
    # No look at the loss: a part of the run's time decides when there is one.
    loss_check.__dict__["COST_MAX"] = 0.0
    schedule.__dict__["_seconds"] = _size
    tuning_run.__dict__["COMPILE_AFTER_SECONDS"] = 1e9


def _faster(*values: Any, **named: Any) -> Speedup:
    return _FASTER


def _gain(*values: Any) -> Gain:
    return Gain(1.3, 1.25, 1.35, 8)


def _size(root: Root) -> float:
    """In place of the seconds of its calls: the elements of its parameters."""
    return float(sum(parameter.numel() for parameter in root.module.parameters()))
