"""Claims and figures of jobs that share a device: pure functions of what was observed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.quantities import format_memory
from gpujob_local.demo.telling import Claim
from gpujob_operator.decide.capacity.calibration import band_percent
from gpujob_operator.decide.capacity.slowdown_law import (
    BANDS_PERCENT,
    PUBLISHED_SLOWDOWNS,
    slowdown_percent,
)

GAIN_MIN = 1.5
SLOWDOWN_PERCENT_MAX = 10.0
UTILIZATION_PERCENT_AIM = 90.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alone:
    """What one kind of job does alone on the device."""

    kind: str
    steps_per_second: float
    utilization_percent: float
    watts: float | None
    peak_bytes: int
    reserved_bytes: int

    def row(self) -> Row:
        return {
            "job": self.kind,
            "steps_per_second": round(self.steps_per_second, 3),
            "utilization_percent": round(self.utilization_percent, 1),
            "watts": rounded(self.watts),
            "nvml_peak_mib": mebibytes(self.peak_bytes),
            "reserved_mib": mebibytes(self.reserved_bytes),
        }


@dataclass(frozen=True, slots=True)
class Together:
    """One job beside others: its pace, and its memory as counted and as reserved."""

    name: str
    alone: Alone
    steps_per_second: float
    peak_bytes: int
    reserved_bytes: int
    declared_bytes: int

    @property
    def relative_speed(self) -> float:
        """Zero if the job made no steps alone, which breaks the claim about it."""
        alone = self.alone.steps_per_second
        return self.steps_per_second / alone if alone > 0 else 0.0

    @property
    def slowdown_percent(self) -> float:
        return slowdown_percent(self.relative_speed)

    def row(self) -> Row:
        return {
            "job": self.name,
            "steps_per_second": round(self.steps_per_second, 3),
            "of_alone": round(self.relative_speed, 3),
            "slowdown_percent": round(self.slowdown_percent, 1),
            "nvml_peak_mib": mebibytes(self.peak_bytes),
            "reserved_mib": mebibytes(self.reserved_bytes),
            "declared_mib": mebibytes(self.declared_bytes),
        }


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a span with several jobs: the counter's, and as their watts alone foretell it."""

    counted_joules: float | None
    foretold_joules: float | None
    # By job, in percent of what is above idle.
    split_percent: Mapping[str, float] = field(default_factory=dict[str, float])

    def row(self) -> Row:
        return {
            "counted_joules": rounded(self.counted_joules),
            "foretold_joules": rounded(self.foretold_joules),
            "split_percent": {name: round(part, 1) for name, part in self.split_percent.items()},
        }


def measured_alone(found: Sequence[Alone], device_bytes: int) -> Claim:
    title = "Each job is measured alone, and its reservation shrinks to what it uses"
    lines = tuple(
        f"{one.kind}: NVML counts {format_memory(one.peak_bytes)}, reserved "
        f"{format_memory(one.reserved_bytes)} of {format_memory(device_bytes)}; "
        f"{one.steps_per_second:.1f} steps/s at {one.utilization_percent:.0f} % utilization"
        for one in found
    )
    holds = all(
        0 < one.peak_bytes <= one.reserved_bytes < device_bytes and one.steps_per_second > 0
        for one in found
    )
    return Claim(title, bool(found) and holds, lines)


def packed(jobs: Sequence[Together], device_bytes: int) -> Claim:
    declared = sum(job.declared_bytes for job in jobs)
    reserved = sum(job.reserved_bytes for job in jobs)
    figures = (
        f"{len(jobs)} jobs declare {format_memory(declared)}, reserve {format_memory(reserved)}; "
        f"the device has {format_memory(device_bytes)}",
    )
    title = "Packed by measurement: declared memory alone would need a second device"
    return Claim(title, len(jobs) > 1 and reserved <= device_bytes < declared, figures)


def memory_covered(jobs: Sequence[Together]) -> Claim:
    figures = tuple(
        f"{job.name}: NVML counts {format_memory(job.peak_bytes)}, reserved "
        f"{format_memory(job.reserved_bytes)}"
        for job in jobs
    )
    holds = all(0 < job.peak_bytes <= job.reserved_bytes for job in jobs)
    return Claim("No job uses more memory than it reserves", bool(jobs) and holds, figures)


def more_work(jobs: Sequence[Together], alone_percent: float, shared_percent: float) -> Claim:
    gain = sum(job.relative_speed for job in jobs)
    figures = (
        f"together {gain:.2f} times the work of one after the other (aim {GAIN_MIN})",
        f"utilization {shared_percent:.0f} % together, {alone_percent:.0f} % one after the other "
        f"(aim {UTILIZATION_PERCENT_AIM:.0f} %)",
    )
    return Claim("Together they do more than one after the other", gain >= GAIN_MIN, figures)


def little_slower(jobs: Sequence[Together]) -> Claim:
    figures = tuple(f"{job.name}: a step takes {job.slowdown_percent:.1f} % longer" for job in jobs)
    worst = max((job.slowdown_percent for job in jobs), default=0.0)
    title = f"No job is slowed by more than {SLOWDOWN_PERCENT_MAX:.0f} %"
    return Claim(title, bool(jobs) and worst <= SLOWDOWN_PERCENT_MAX, figures)


def energy_of(
    jobs: Sequence[Together], idle_watts: float | None, seconds: float, joules: float | None
) -> Energy:
    """The split by watts alone: each job's watts above idle, as fast as it was."""
    watts = [job.alone.watts for job in jobs]
    if idle_watts is None or None in watts:
        return Energy(joules, None)
    above = {
        job.name: max(0.0, (job.alone.watts or 0.0) - idle_watts) * job.relative_speed
        for job in jobs
    }
    total = sum(above.values())
    split = {name: 100 * part / total for name, part in above.items()} if total > 0 else {}
    return Energy(joules, seconds * (idle_watts + total), split)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workloads on one device, their utilization and pace alone, their pace together."""

    names: tuple[str, str]
    utilization_percent: tuple[float, float]
    relative_speeds: tuple[float, float]

    @property
    def summed_percent(self) -> float:
        return sum(self.utilization_percent)

    @property
    def predicted_percent(self) -> float:
        """The slowdown by the law with which the operator decides."""
        return PUBLISHED_SLOWDOWNS[BANDS_PERCENT.index(band_percent(self.summed_percent))]

    @property
    def measured_percent(self) -> tuple[float, float]:
        first, second = (slowdown_percent(speed) for speed in self.relative_speeds)
        return first, second

    def row(self) -> Row:
        first, second = self.measured_percent
        return {
            "pair": " + ".join(self.names),
            "summed_percent": round(self.summed_percent, 1),
            "predicted_percent": round(self.predicted_percent, 1),
            "first_percent": round(first, 1),
            "second_percent": round(second, 1),
            "work": round(sum(self.relative_speeds), 3),
        }


def law_figures(pairs: Sequence[Pair]) -> Row:
    """How far the law is from the measurement, in percentage points of slowdown."""
    errors = [
        measured - pair.predicted_percent for pair in pairs for measured in pair.measured_percent
    ]
    if not errors:
        return {"pairs": 0}
    within = sum(
        max(pair.measured_percent) <= SLOWDOWN_PERCENT_MAX
        for pair in pairs
        if pair.predicted_percent <= SLOWDOWN_PERCENT_MAX
    )
    return {
        "pairs": len(pairs),
        "mean_absolute_error_points": round(sum(map(abs, errors)) / len(errors), 1),
        "mean_error_points": round(sum(errors) / len(errors), 1),
        "allowed_at_10_percent": sum(
            pair.predicted_percent <= SLOWDOWN_PERCENT_MAX for pair in pairs
        ),
        "of_these_within_10_percent": within,
    }


def claim_row(claim: Claim) -> Row:
    return {"title": claim.title, "holds": claim.holds, "figures": list(claim.figures)}


def mebibytes(amount: int) -> int:
    return round(amount / 1024**2)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
