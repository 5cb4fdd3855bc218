"""What one backend's batches took: the figures from which one is chosen."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from gpujob_api.bounds import Items, Range
from gpujob_api.serving import BatchTime

Seconds = Annotated[float, Range(0, 10**6, clamp=True)]
SIZES_MAX = 32
# A larger difference between processes is not the speed of the machine: a candidate may disturb the
# model as written, for example by threads that spin, and must not gain from that.
LEVEL_FACTOR_MAX = 2.0


@dataclass(frozen=True, slots=True)
class SizeTime:
    """Of batches of one size, taken in turns with the model as written in the same process."""

    size: Annotated[int, Range(1, 65_536)]
    seconds: Seconds
    # 99 % of the batches took no more than this.
    p99_seconds: Seconds
    eager_seconds: Seconds
    batches: Annotated[int, Range(1, 10**9)]


@dataclass(frozen=True, slots=True)
class Timing:
    sizes: Annotated[tuple[SizeTime, ...], Items(SIZES_MAX)] = ()
    memory_bytes: Annotated[int, Range(0, 2**53 - 1)] = 0
    # From the start of the build until every size had run.
    start_seconds: Seconds = 0.0


def fit(points: Sequence[tuple[int, float]]) -> BatchTime:
    """Returns t(b) = fixed + per_sample * b in milliseconds, for (size, seconds) points.

    Least squares of relative errors: the weight of a point is 1 / t^2, so that small batches count
    as much as large ones. Neither coefficient is negative.
    """
    if len(points) < 2:
        size, seconds = points[0] if points else (1, 0.0)
        return BatchTime(0.0, 1000 * seconds / size)
    weights = [1 / max(seconds, 1e-9) ** 2 for _, seconds in points]
    total = sum(weights)
    size_mean = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    mean = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
    spread = sum(w * (b - size_mean) ** 2 for w, (b, _) in zip(weights, points, strict=True))
    both = sum(w * (b - size_mean) * (t - mean) for w, (b, t) in zip(weights, points, strict=True))
    slope = max(0.0, both / spread) if spread > 0 else 0.0
    fixed = mean - slope * size_mean
    if fixed < 0:
        squares = sum(w * b * b for w, (b, _) in zip(weights, points, strict=True))
        slope = sum(w * b * t for w, (b, t) in zip(weights, points, strict=True)) / squares
        fixed = 0.0
    return BatchTime(1000 * fixed, 1000 * slope)


def level(timings: Sequence[Timing]) -> dict[int, float]:
    """Returns the seconds of the model as written at each size: the median over the processes."""
    found: dict[int, list[float]] = {}
    for timing in timings:
        for one in timing.sizes:
            found.setdefault(one.size, []).append(one.eager_seconds)
    return {size: statistics.median(values) for size, values in found.items()}


def levelled(timing: Timing, levels: dict[int, float]) -> Timing:
    """Returns the timing as if all processes had run at the same speed.

    What slowed a process down slowed the model as written down too, which ran in turns with it. The
    correction is at most by `LEVEL_FACTOR_MAX`.
    """
    sizes: list[SizeTime] = []
    for one in timing.sizes:
        common = levels.get(one.size, one.eager_seconds)
        factor = common / one.eager_seconds if one.eager_seconds > 0 else 1.0
        factor = min(max(factor, 1 / LEVEL_FACTOR_MAX), LEVEL_FACTOR_MAX)
        p99 = factor * one.p99_seconds
        sizes.append(SizeTime(one.size, factor * one.seconds, p99, common, one.batches))
    return Timing(tuple(sizes), timing.memory_bytes, timing.start_seconds)
