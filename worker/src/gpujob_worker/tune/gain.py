"""What the chosen settings gain together: in turns with the script's own way, on one batch.

Each item was chosen by a measurement that ended as soon as it was clear, and the mean of such a
measurement is too high. Here the number of pairs is fixed before the first of them runs.
"""

import torch

from gpujob_api.report import Speedup
from gpujob_worker.inject.fused_optimizer import OptimizerCopy, use_fused
from gpujob_worker.inject.wrapped_module import RecordedCall, Root
from gpujob_worker.probe.compare import PAIRS_MIN, measure_pairs
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.registry import put_in_force

GAIN_PAIRS = 10
# At least so long, also when the time for tuning is over.
GAIN_SECONDS = 5.0
# And this part of the time for tuning, which is longer where steps are.
GAIN_FRACTION = 0.4


class _Side:
    """One way to run forward and backward, and the optimizer's step where the ways differ in it."""

    def __init__(
        self, root: Root, recorded: RecordedCall, applied: Applied, copy: OptimizerCopy | None
    ) -> None:
        self._root = root
        self._probe = RootProbe(root, recorded)
        self._applied = applied
        self._copy = copy

    def seconds(self) -> float:
        put_in_force(self._root, None, self._applied)
        seconds = self._probe.seconds(self._applied.plan)
        return seconds if self._copy is None else seconds + self._copy.step_seconds()


def measure_gain(
    root: Root,
    recorded: RecordedCall,
    optimizer: torch.optim.Optimizer | None,
    ways: tuple[Applied, Applied],
    seconds: float,
) -> Speedup | None:
    """How many times as fast the second way is; None where it would take more than `seconds`.

    Leaves in force what ran last.
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
    # Libraries set themselves up in a first run.
    chosen.seconds()
    plain.seconds()
    pairs = int(min(GAIN_PAIRS, seconds / max(plain.seconds() + chosen.seconds(), 1e-9)))
    if pairs < PAIRS_MIN:
        return None
    found = measure_pairs(plain.seconds, chosen.seconds, pairs)
    return Speedup(found.ratio, found.low, found.high, found.pairs)
