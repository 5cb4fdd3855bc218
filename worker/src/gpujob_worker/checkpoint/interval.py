"""How often to write a checkpoint, and what to do with a running write on a stop."""

import math
from dataclasses import dataclass
from enum import Enum

# Spot nodes are reclaimed a few times a day, and an hour between losses is a careful guess. If the
# notice is long enough for a checkpoint, only losses without a notice cost an interval.
MEAN_SECONDS_BETWEEN_LOSSES = 3600.0
MEAN_SECONDS_BETWEEN_CRASHES = 4 * 3600.0
SECONDS_RANGE = (10.0, 900.0)
OVERHEAD_MAX = 0.01
# During training, the disk is idle for at least half of the time.
WRITING_SHARE_MAX = 0.5
# A write within a notice may take this much longer than the last one did.
SAFETY = 1.5


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """The cost of the last checkpoint: training stood still, then it was written in the background.

    `slowdown` is the share of its speed that the training lost meanwhile.
    """

    blocked_seconds: float
    write_seconds: float = 0.0
    slowdown: float = 0.0

    @property
    def lost_seconds(self) -> float:
        """The training time that was lost in total."""
        return self.blocked_seconds + self.write_seconds * self.slowdown

    @property
    def whole_seconds(self) -> float:
        """The time from the last step in the checkpoint to its commit."""
        return self.blocked_seconds + self.write_seconds


def interval_seconds(
    asked_seconds: int | None, cost: CheckpointCost | None, notice_seconds: float
) -> float:
    """Returns `sqrt(2 * seconds lost * mean time between losses)` (Young 1974), within bounds.

    At most 1 % of the time is lost, and at most half of it is spent writing. `asked_seconds` takes
    precedence. If a checkpoint fits into the notice, only crashes lose an interval. The first
    checkpoint comes at the lower bound, to measure the cost.
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
    """What happens to a running write, and to the steps made since."""

    FINISH_THEN_SAVE = "finish it, then save the newest step"
    CANCEL_AND_SAVE = "give it up for the newest step"
    FINISH_ONLY = "finish it; the newest step does not fit"


def plan_stop(
    remaining_seconds: float, save_seconds: float | None, rest_seconds: float | None
) -> StopPlan:
    """Returns the plan. Unknown times are assumed to fit.

    `save_seconds` is the time for the newest step, and `rest_seconds` the time that is left of the
    older write.
    """
    save = SAFETY * (save_seconds or 0.0)
    if save + (rest_seconds or 0.0) <= remaining_seconds:
        return StopPlan.FINISH_THEN_SAVE
    return StopPlan.CANCEL_AND_SAVE if save <= remaining_seconds else StopPlan.FINISH_ONLY
