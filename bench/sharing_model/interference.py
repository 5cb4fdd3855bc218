"""How much jobs slow each other down when they share a GPU, told from what each does alone.

The running pair's own measurement (`corrected`) counts more and more. A calibration belongs to one
GPU model: without observations it is the published law, with them it leans on the pairs that were
most alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpujob_operator.decide.capacity.slowdown_law import (
    PUBLISHED_LAW,
    PUBLISHED_LAW_ABOVE,
    SPEED_MIN,
    slowdown_percent,
)

# Observed pairs of another kind of workload count as this much further away (squared, halved).
_KIND_DISTANCE = 2.0
# What the law, or without it the mean of all observations, weighs against one identical pair.
_PRIOR_WEIGHT = 0.1
# Samples of a running pair which weigh as much as the prediction.
_CORRECTION_SAMPLES = 3.0
OBSERVATIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Use:
    """What one job does alone on a GPU.

    `utilization_percent` is the share of time in which the GPU computes; `other_percent` the same
    for other things that come with the GPU (its memory bandwidth, its share of the data loading
    cores, of the network). `traits` are further figures measured alone, scaled so that 1 is a usual
    difference between two jobs (the logarithm of the step time, say); `kind` is what the workload
    is called, such as its image and command.
    """

    utilization_percent: float | None = None
    other_percent: Mapping[str, float] = field(default_factory=dict[str, float])
    traits: tuple[float, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """A job was seen at `relative_speed` (1 = as fast as alone) beside `neighbour`."""

    own: Use
    neighbour: Use
    relative_speed: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of one GPU model. The default is the published law alone."""

    observations: tuple[Observation, ...] = ()
    mean_speed: float = PUBLISHED_LAW_ABOVE / 2


@dataclass(frozen=True, slots=True)
class SharingVerdict:
    """Whether jobs may share, each one's predicted relative speed, and why in numbers."""

    allowed: bool
    relative_speeds: tuple[float, ...]
    reason: str

    @property
    def gain(self) -> float:
        """Sum of relative speeds: 1 = no more work done than by one job at a time."""
        return sum(self.relative_speeds)


def calibrate(observations: Iterable[Observation]) -> Calibration:
    """Takes the observations of one GPU model; absurd ones are left out, the newest are kept.

    An observation is absurd when its speed is not a number from 0 (excluded) to 2.
    """
    kept = tuple(seen for seen in observations if 0 < seen.relative_speed <= 2)
    kept = kept[-OBSERVATIONS_MAX:]
    if not kept:
        return Calibration()
    return Calibration(kept, sum(min(seen.relative_speed, 1.0) for seen in kept) / len(kept))


def predicted_speeds(uses: Sequence[Use], calibration: Calibration) -> tuple[float, ...]:
    """Each job's speed relative to running alone, if all of `uses` share one GPU.

    Several neighbours count one after the other; and never is more of anything used than there is.
    """
    speeds: list[float] = []
    for index, own in enumerate(uses):
        others = [use for position, use in enumerate(uses) if position != index]
        speed = math.prod(_pair_speed(own, other, calibration) for other in others)
        speeds.append(max(min(speed, _capacity_speed(uses)), SPEED_MIN))
    return tuple(speeds)


def may_share(
    uses: Sequence[Use],
    max_slowdown_percent: Sequence[float],
    calibration: Calibration,
    min_gain: float = 1.0,
) -> SharingVerdict:
    """Whether `uses` may share a GPU; the same order as each one's `max_slowdown_percent`.

    No job may be slowed over its limit, and together they must do more work than `min_gain` jobs
    that take turns.
    """
    speeds = predicted_speeds(uses, calibration)
    for position, (speed, limit) in enumerate(zip(speeds, max_slowdown_percent, strict=True)):
        slowdown = slowdown_percent(speed)
        if slowdown > limit:
            reason = f"job {position + 1} of {len(uses)} would be {slowdown:.1f} % slower"
            return SharingVerdict(False, speeds, f"{reason}; its limit is {limit:g} %")
    gain = sum(speeds)
    if len(uses) > 1 and gain <= min_gain:
        reason = f"together {gain:.2f} of a GPU's work; more than {min_gain:.2f} is needed"
        return SharingVerdict(False, speeds, reason)
    worst = max((slowdown_percent(speed) for speed in speeds), default=0.0)
    return SharingVerdict(True, speeds, f"together {gain:.2f}, at most {worst:.1f} % slower")


def corrected(predicted_speed: float, measured_speed: float, samples: int) -> float:
    """The prediction after `samples` measurements of the running pair."""
    weight = samples / (samples + _CORRECTION_SAMPLES)
    return predicted_speed + weight * (measured_speed - predicted_speed)


def law_speed(summed_percent: float) -> float:
    """The published law: one job's mean relative speed in a pair of this summed utilization."""
    for limit, speeds in PUBLISHED_LAW:
        if summed_percent < limit:
            return speeds / 2
    return PUBLISHED_LAW_ABOVE / 2


def _pair_speed(own: Use, other: Use, calibration: Calibration) -> float:
    prior = _prior_speed(own, other, calibration)
    weight, total = _PRIOR_WEIGHT, _PRIOR_WEIGHT * prior
    for seen in calibration.observations:
        alike = math.exp(-_distance(own, seen.own) - _distance(other, seen.neighbour))
        weight += alike
        total += alike * min(seen.relative_speed, 1.0)
    return total / weight


def _prior_speed(own: Use, other: Use, calibration: Calibration) -> float:
    """The law for whatever the two use most of together; unknown utilization: the mean seen."""
    if own.utilization_percent is None or other.utilization_percent is None:
        return calibration.mean_speed
    return law_speed(max(_sums((own, other)).values()))


def _capacity_speed(uses: Sequence[Use]) -> float:
    return min((100 / total for total in _sums(uses).values() if total > 100), default=1.0)


def _sums(uses: Sequence[Use]) -> dict[str, float]:
    sums = {"": sum(use.utilization_percent or 0.0 for use in uses)}
    for use in uses:
        for name, percent in use.other_percent.items():
            sums[name] = sums.get(name, 0.0) + percent
    return sums


def _distance(first: Use, second: Use) -> float:
    """Half the squared distance of two profiles; what one of them lacks does not count."""
    total = sum((a - b) ** 2 for a, b in zip(first.traits, second.traits, strict=False)) / 2
    if first.utilization_percent is not None and second.utilization_percent is not None:
        # A difference of 25 percentage points is a usual one.
        total += ((first.utilization_percent - second.utilization_percent) / 25) ** 2 / 2
    return total + (_KIND_DISTANCE if first.kind != second.kind else 0.0)
