"""How often to write a checkpoint, and what to do about one under way when asked to stop."""

import math
from dataclasses import dataclass
from enum import Enum

# Spot nodes are reclaimed a few times a day; an hour between losses is a careful guess. Where the
# notice is long enough for a checkpoint, only what comes without one costs an interval.
MEAN_SECONDS_BETWEEN_LOSSES = 3600.0
MEAN_SECONDS_BETWEEN_CRASHES = 4 * 3600.0
SECONDS_RANGE = (10.0, 900.0)
OVERHEAD_MAX = 0.01
# Beside the training, the disk is left alone for at least half of the time.
WRITING_SHARE_MAX = 0.5
# A write under a notice may take this much longer than the last one did.
SAFETY = 1.5


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What the last checkpoint took: training stood still, then it was written beside it.

    `slowdown` is the share of its speed that the training lost meanwhile.
    """

    blocked_seconds: float
    write_seconds: float = 0.0
    slowdown: float = 0.0

    @property
    def lost_seconds(self) -> float:
        """Of training, in all."""
        return self.blocked_seconds + self.write_seconds * self.slowdown

    @property
    def whole_seconds(self) -> float:
        """From the last step that is in it to its commit."""
        return self.blocked_seconds + self.write_seconds


def interval_seconds(
    asked_seconds: int | None, cost: CheckpointCost | None, notice_seconds: float
) -> float:
    """`sqrt(2 * seconds lost * mean time between losses)` (Young 1974), within bounds; at most 1 %
    of the time is lost and half of it written in. `asked_seconds` wins.

    A checkpoint that fits into the notice loses an interval to crashes alone. The first one comes
    at the lower bound, to learn the cost.
    """
    low, high = SECONDS_RANGE
    if asked_seconds is not None:
        return float(asked_seconds)
    if cost is None:
        return low
    fits = cost.whole_seconds * SAFETY <= notice_seconds
    between = MEAN_SECONDS_BETWEEN_CRASHES if fits else MEAN_SECONDS_BETWEEN_LOSSES
    best = math.sqrt(2.0 * cost.lost_seconds * between)
    least = max(cost.lost_seconds / OVERHEAD_MAX, cost.write_seconds / WRITING_SHARE_MAX)
    return max(min(max(best, low), high), least)


class StopPlan(Enum):
    """What becomes of a write under way, and of the steps made since."""

    FINISH_THEN_SAVE = "finish it, then save the newest step"
    CANCEL_AND_SAVE = "give it up for the newest step"
    FINISH_ONLY = "finish it; the newest step does not fit"


def plan_stop(
    remaining_seconds: float, save_seconds: float | None, rest_seconds: float | None
) -> StopPlan:
    """`save_seconds` is what the newest step would take, `rest_seconds` what is still to be written
    of the older one. What is not known is taken to fit."""
    save = SAFETY * (save_seconds or 0.0)
    if save + (rest_seconds or 0.0) <= remaining_seconds:
        return StopPlan.FINISH_THEN_SAVE
    return StopPlan.CANCEL_AND_SAVE if save <= remaining_seconds else StopPlan.FINISH_ONLY
