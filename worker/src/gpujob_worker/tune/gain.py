"""Measures the gain of all chosen settings together: in turns with the script's own settings, on
one batch.

Each setting was chosen by a measurement that ended once it was clear, and the mean of such a
measurement is biased upwards. Here the number of pairs is fixed before the first one runs.
"""

import torch

from gpujob_api.report import Speedup
from gpujob_worker.inject.fused_optimizer import OptimizerCopy, use_fused
from gpujob_worker.inject.wrapped_module import RecordedCall, Root
from gpujob_worker.probe.compare import PAIRS_MIN, measure_pairs
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.registry import apply_settings

GAIN_PAIRS = 10
# Minimum time, also after the tuning budget is spent.
GAIN_SECONDS = 5.0
# And at least this part of the tuning budget, which is longer for long steps.
GAIN_FRACTION = 0.4


class _Side:
    """One variant of forward and backward, and of the optimizer's step if the variants differ in
    it.
    """

    def __init__(
        self, root: Root, recorded: RecordedCall, applied: Applied, copy: OptimizerCopy | None
    ) -> None:
        self._root = root
        self._probe = RootProbe(root, recorded)
        self._applied = applied
        self._copy = copy

    def seconds(self) -> float:
        apply_settings(self._root, None, self._applied)
        seconds = self._probe.seconds(self._applied.plan)
        return seconds if self._copy is None else seconds + self._copy.step_seconds()


def measure_gain(
    root: Root,
    recorded: RecordedCall,
    optimizer: torch.optim.Optimizer | None,
    ways: tuple[Applied, Applied],
    seconds: float,
) -> Speedup | None:
    """The speed-up of the second variant; None if the measurement would take more than `seconds`.

    Leaves the variant applied that ran last.
    """
    copies: list[OptimizerCopy | None] = [None, None]
    if ways[1].fused and optimizer is not None:
        copies = [OptimizerCopy(optimizer), OptimizerCopy(optimizer)]
        for copy, way in zip(copies, ways, strict=True):
            assert copy is not None
            use_fused(copy.optimizer, way.fused)
    plain, chosen = (
        _Side(root, recorded, way, copy) for way, copy in zip(ways, copies, strict=True)
    )
    # Libraries initialize themselves in a first run.
    chosen.seconds()
    plain.seconds()
    pairs = int(min(GAIN_PAIRS, seconds / max(plain.seconds() + chosen.seconds(), 1e-9)))
    if pairs < PAIRS_MIN:
        return None
    found = measure_pairs(plain.seconds, chosen.seconds, pairs)
    return Speedup(found.ratio, found.low, found.high, found.pairs)
