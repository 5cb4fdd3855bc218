"""How many times faster: the median over pairs and a confidence interval that outliers do not move.

The interval is that of the sign test: between two order statistics, without any assumption about
how the times of a busy machine are distributed.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of the pairs' ratios and its interval at 95 %."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of `above[i] / below[i]`. With fewer than six pairs the interval is the whole range."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    if not ratios:
        raise ValueError("a ratio needs at least one pair")
    rank = _rank(len(ratios))
    return Ratio(statistics.median(ratios), ratios[rank], ratios[-1 - rank], len(ratios))


def _rank(count: int) -> int:
    """How many values may be left out on each side: the binomial tail stays under 2.5 %."""
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2.0**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    return max(0, rank - 1)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def quiet_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of the means of the quietest quarter of both: what the least disturbed blocks took.

    Others on the machine only ever make a block longer, so its low end is the program's own. The
    interval holds 95 % of 1,000 draws of as many rounds, with replacement (bootstrap, one seed).
    """
    return _drawn(above, below, _quiet)


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """For differences of times, of which single ones may be near zero. The interval is drawn as
    that of `quiet_ratio`.
    """
    return _drawn(above, below, _medians)


_Rounds = Sequence[tuple[float, float]]


def _drawn(above: Sequence[float], below: Sequence[float], of: Callable[[_Rounds], float]) -> Ratio:
    rounds = list(zip(above, below, strict=True))
    if not rounds:
        raise ValueError("a ratio needs at least one pair")
    rng = random.Random(1)
    drawn = sorted(of(rng.choices(rounds, k=len(rounds))) for _ in range(DRAWS))
    cut = round(DRAWS * (1 - CONFIDENCE) / 2)
    return Ratio(of(rounds), drawn[cut], drawn[-1 - cut], len(rounds))


def _medians(rounds: _Rounds) -> float:
    below = statistics.median(b for _, b in rounds)
    return statistics.median(a for a, _ in rounds) / below if below else math.inf


def _quiet(rounds: _Rounds) -> float:
    count = max(1, len(rounds) // 4)
    above = sorted(a for a, _ in rounds)[:count]
    below = sorted(b for _, b in rounds)[:count]
    return statistics.fmean(above) / statistics.fmean(below)
