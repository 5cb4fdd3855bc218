"""The slowdown law: how much jobs on one GPU slow each other, by their summed utilization."""

import math
from functools import lru_cache

# The sum of both jobs' relative speeds by the pair's summed GPU utilization in percent, from 1,388
# pairs measured on one GPU model (Hu et al., Lucid, ASPLOS'23).
PUBLISHED_LAW: tuple[tuple[float, float], ...] = ((50, 2.00), (80, 1.93), (95, 1.79))
PUBLISHED_LAW_ABOVE = 1.58

# The same as a slowdown in percent, by the upper bound of the sum.
BANDS_PERCENT = (50, 80, 95, 10_000)
Law = tuple[float, float, float, float]

# Lower bound of a prediction, because no measured job came to a standstill next to another.
SPEED_MIN = 0.05


def slowdown_percent(relative_speed: float) -> float:
    """Returns how much longer a step takes than alone, in percent."""
    return 100 * (1 / max(relative_speed, SPEED_MIN) - 1)


PUBLISHED_SLOWDOWNS: Law = (
    slowdown_percent(PUBLISHED_LAW[0][1] / 2),
    slowdown_percent(PUBLISHED_LAW[1][1] / 2),
    slowdown_percent(PUBLISHED_LAW[2][1] / 2),
    slowdown_percent(PUBLISHED_LAW_ABOVE / 2),
)


@lru_cache(maxsize=4096)
def summed_utilization_limit_percent(
    max_slowdown_percent: float, law: Law = PUBLISHED_SLOWDOWNS
) -> float:
    """Returns the summed utilization up to which the model's law predicts at most this slowdown.

    Above full use, time is shared in proportion, so a sum of 100 % + s slows each job by s %.
    """
    limit = 0.0
    for summed, slowdown in zip(BANDS_PERCENT[:-1], law, strict=False):
        if slowdown <= max_slowdown_percent:
            limit = math.nextafter(summed, 0.0)
    if law[-1] <= max_slowdown_percent:
        limit = 100.0 + max_slowdown_percent
    return limit
