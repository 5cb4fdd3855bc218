"""How long a batch takes, estimated from the newest batches.

The model is a line, t(b) = fixed + per_sample * b, as BentoML's dispatcher fits it. Its parts are
estimated so that single batches that take very long do not matter:

- Batches are grouped by size, in powers of two. A group is represented by the batch whose ratio
  to the present line is the median of the group's last 9. One slow batch is never the median, and
  a lasting change is after 5 batches.
- A line is fitted to the groups by least squares of relative errors. The weight of a group halves
  each 64 batches in which it was not seen.
- Two points of the prior, scaled by the median ratio of the last 9 batches to it, take part with a
  small weight that halves each 64 batches, down to a bound. They determine the slope as long as all
  batches have one size, and lift all sizes together if a neighbour slows the device down.

Margins are quantiles of the relative errors of the last 512 predictions: that of the objective's
percentile for the last moment of a dispatch, and a lower one for the admission of requests. If rare
slow batches counted there, a busy device would refuse requests all the time for their sake.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpujob_worker.serving.quantile import RecentQuantile

GROUP_BATCHES = 9
HALF_LIFE_BATCHES = 64
ERRORS_KEPT = 512
# Before that many errors are known, margins are MARGIN_UNKNOWN of the predicted time.
ERRORS_MIN = 20
MARGIN_UNKNOWN = 0.25
USUAL_PERCENT = 90.0
# Of the predicted time. The upper bounds limit the effect of a long disturbance.
MARGIN_RANGE = (0.05, 1.0)
USUAL_MARGIN_RANGE = (0.05, 0.5)
# Of a point of the prior at first, and in the end: batches in a row of one size tell no slope.
PRIOR_WEIGHT_RANGE = (0.01, 0.5)
# Sizes at which the prior takes part in the fit.
PRIOR_SIZES = (1, 64)
SECONDS_MIN = 1e-7


@dataclass(frozen=True, slots=True)
class Line:
    """t(b) = fixed_seconds + per_sample_seconds * b. Neither is negative."""

    fixed_seconds: float
    per_sample_seconds: float

    def seconds(self, samples: int) -> float:
        return max(SECONDS_MIN, self.fixed_seconds + self.per_sample_seconds * samples)


@dataclass(slots=True)
class _Group:
    """The newest batches of similar size: pairs of samples and seconds."""

    batches: deque[tuple[int, float]] = field(
        default_factory=lambda: deque[tuple[int, float]](maxlen=GROUP_BATCHES)
    )
    newest: int = 0

    def median(self, line: Line) -> tuple[int, float]:
        ordered = sorted(self.batches, key=lambda batch: batch[1] / line.seconds(batch[0]))
        return ordered[(len(ordered) - 1) // 2]


class BatchTimes:
    """The line and the margins, kept up to date by `observe`.

    A margin is the share of the predicted time to add: `margin` is exceeded as rarely as the
    objective permits, `usual_margin` by one batch of ten.
    """

    def __init__(self, prior: Line, percentile: float = 99.0) -> None:
        self.line = prior
        self.margin = self.usual_margin = MARGIN_UNKNOWN
        # The number of batches seen.
        self.observed = 0
        self._prior = prior
        self._percentile = percentile
        self._groups: dict[int, _Group] = {}
        self._ratios: deque[float] = deque(maxlen=GROUP_BATCHES)
        self._errors = RecentQuantile(ERRORS_KEPT)

    def seconds(self, samples: int) -> float:
        return self.line.seconds(samples)

    def observe(self, samples: int, seconds: float) -> None:
        """Adds a batch of `samples`, padding included, that took `seconds`."""
        seconds = max(SECONDS_MIN, seconds)
        self.observed += 1
        if self.observed > 1:
            self._errors.add(seconds / self.line.seconds(samples) - 1)
        if len(self._errors) >= ERRORS_MIN:
            self.margin = self._quantile(self._percentile, MARGIN_RANGE)
            self.usual_margin = self._quantile(USUAL_PERCENT, USUAL_MARGIN_RANGE)
        group = self._groups.setdefault(samples.bit_length(), _Group())
        group.batches.append((samples, seconds))
        group.newest = self.observed
        self._ratios.append(seconds / self._prior.seconds(samples))
        self.line = fit(self._points())

    def _quantile(self, percent: float, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return min(high, max(low, self._errors.value(percent, MARGIN_UNKNOWN)))

    def _points(self) -> Iterable[tuple[float, float, float]]:
        """Yields samples, seconds and weight."""
        level = sorted(self._ratios)[(len(self._ratios) - 1) // 2]
        low, high = PRIOR_WEIGHT_RANGE
        weight = max(low, high * 0.5 ** (self.observed / HALF_LIFE_BATCHES))
        for samples in PRIOR_SIZES:
            yield samples, level * self._prior.seconds(samples), weight
        for group in self._groups.values():
            samples, seconds = group.median(self.line)
            age = self.observed - group.newest
            yield samples, seconds, len(group.batches) * 0.5 ** (age / HALF_LIFE_BATCHES)


def fit(points: Iterable[tuple[float, float, float]]) -> Line:
    """Returns the line with the least weighted squares of relative errors.

    A point is samples, seconds and weight. If a part would be negative, it is 0, and the other one
    is fitted alone.
    """
    total = by_samples = by_seconds = squares = products = 0.0
    for samples, seconds, weight in points:
        relative = weight / (seconds * seconds)
        total += relative
        by_samples += relative * samples
        by_seconds += relative * seconds
        squares += relative * samples * samples
        products += relative * samples * seconds
    spread = total * squares - by_samples * by_samples
    if spread <= 1e-12 * total * squares:
        return Line(by_seconds / total, 0.0)
    per_sample = (total * products - by_samples * by_seconds) / spread
    if per_sample <= 0:
        return Line(by_seconds / total, 0.0)
    fixed = (by_seconds - per_sample * by_samples) / total
    if fixed < 0:
        return Line(0.0, products / squares)
    return Line(fixed, per_sample)
