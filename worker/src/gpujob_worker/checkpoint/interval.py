"""How often to write a checkpoint: Young's formula with the measured cost, or as the user says."""

import math

# Spot nodes are reclaimed a few times a day; an hour between losses is a careful guess.
MEAN_SECONDS_BETWEEN_LOSSES = 3600.0
SECONDS_RANGE = (10.0, 900.0)
OVERHEAD_MAX = 0.01


def interval_seconds(asked_seconds: int | None, write_seconds: float | None) -> float:
    """`sqrt(2 * cost * mean time between losses)` (Young 1974), within bounds and at most 1 % of
    the time; `asked_seconds` wins. The first one comes at the lower bound, to learn the cost."""
    low, high = SECONDS_RANGE
    if asked_seconds is not None:
        return float(asked_seconds)
    if write_seconds is None:
        return low
    best = math.sqrt(2.0 * write_seconds * MEAN_SECONDS_BETWEEN_LOSSES)
    return max(min(max(best, low), high), write_seconds / OVERHEAD_MAX)
