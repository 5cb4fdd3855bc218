"""Measures the gain of all chosen settings together, alternating with the script's own settings on
one batch.

The measurement that chose a setting ended once it was clear, and the mean of such a measurement is
biased upwards. Here the number of pairs is fixed before the first one runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpujob_api.report import Speedup
from gpujob_worker.inject.fused_optimizer import OptimizerCopy, use_fused
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.compare import PAIRS_MIN, measure_pairs
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.registry import apply_settings

GAIN_PAIRS = 10
# Two runs of each way: one initializes libraries, and one is timed to choose the number of pairs.
RUNS_BEFORE = 2
# Minimum time in seconds, even after the tuning budget is spent.
GAIN_SECONDS = 5.0
# Minimum part of the tuning budget. The budget is longer for long steps.
GAIN_FRACTION = 0.4


@dataclass(frozen=True, slots=True)
class Part:
    """A module's call in a step, with the two ways of making it that are compared."""

    root: Root
    recorded: RecordedCall
    plain: Applied
    chosen: Applied


class _Side:
    """One way of making a step's calls forward and backward.

    `optimizer_seconds` has the duration of the optimizers' step for each run.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Root, RecordedCall, Applied]],
        optimizer_seconds: Sequence[float],
    ) -> None:
        self._parts = [(root, RootProbe(root, call), way) for root, call, way in parts]
        self._optimizer_seconds = iter(optimizer_seconds)

    def seconds(self) -> float:
        seconds = next(self._optimizer_seconds, 0.0)
        for root, probe, applied in self._parts:
            apply_settings(root, None, applied)
            seconds += probe.seconds(applied.plan)
        return seconds


def _optimizers_seconds(
    optimizers: Sequence[torch.optim.Optimizer], ways: tuple[Applied, Applied]
) -> tuple[list[float], list[float]]:
    """Returns the optimizers' total seconds in each run, for both ways.

    The copies are freed before the model runs. Next to its activations they would take more memory
    than the job ever does.
    """
    found = [_optimizer_seconds(optimizer, ways) for optimizer in optimizers]
    plain, chosen = [one for one, _ in found], [one for _, one in found]
    return _sums(plain), _sums(chosen)


def _sums(runs: Sequence[Sequence[float]]) -> list[float]:
    return [sum(run, 0.0) for run in zip(*runs, strict=True)]


def _optimizer_seconds(
    optimizer: torch.optim.Optimizer, ways: tuple[Applied, Applied]
) -> tuple[list[float], list[float]]:
    """Returns one optimizer's seconds in each run, for both ways, which alternate."""
    copies = OptimizerCopy(optimizer), OptimizerCopy(optimizer)
    for copy, way in zip(copies, ways, strict=True):
        use_fused(copy.optimizer, way.fused)
        copy.step_seconds()
    turns = [[copy.step_seconds() for copy in copies] for _ in range(GAIN_PAIRS + RUNS_BEFORE)]
    return [plain for plain, _ in turns], [chosen for _, chosen in turns]


def measure_gain(
    parts: Sequence[Part], optimizers: Sequence[torch.optim.Optimizer], seconds: float
) -> Speedup | None:
    """Returns the speed-up of the chosen way, or None if the measurement would take over `seconds`.

    The first part determines which kernel `optimizers` use. The way that ran last stays applied.
    """
    steps: tuple[Sequence[float], Sequence[float]] = (), ()
    if parts[0].chosen.fused:
        steps = _optimizers_seconds(optimizers, (parts[0].plain, parts[0].chosen))
    plain = _Side([(part.root, part.recorded, part.plain) for part in parts], steps[0])
    chosen = _Side([(part.root, part.recorded, part.chosen) for part in parts], steps[1])
    # Libraries initialize themselves in the first run.
    chosen.seconds()
    plain.seconds()
    pairs = int(min(GAIN_PAIRS, seconds / max(plain.seconds() + chosen.seconds(), 1e-9)))
    if pairs < PAIRS_MIN:
        return None
    found = measure_pairs(plain.seconds, chosen.seconds, pairs)
    return Speedup(found.ratio, found.low, found.high, found.pairs)
