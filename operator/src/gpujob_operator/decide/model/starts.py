"""Ranges of the expected starts of pending jobs, and how many of them held.

A range is computed outside the cycle (`simulation.start_ranges`). The plan writes it to the status,
and clears it in the same write that places, suspends or refuses the job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.start_range import StartRange
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.waiting_time import HELD_BACK

# Pending jobs that get a range at most.
JOBS_MAX = 200
# Fewer simulated futures have no 10 % at either end, and give no ranges.
DRAWS_MIN = 9
# A range that is older is not shown.
STALE = timedelta(minutes=5)
# A range is written again after this time even if it is the same.
RENEWED_AFTER = timedelta(minutes=2, seconds=30)
# A smaller change is not written: this part of the remaining wait, and at least this long.
CHANGE_FRACTION = 0.1
CHANGE_MIN = timedelta(minutes=1)
# Ranges are published if this part of the newest outcomes held, or if there are few outcomes.
OUTCOMES_MAX = 50
OUTCOMES_MIN = 10
HELD_FRACTION_MIN = 0.7
_MINUTE = timedelta(minutes=1)
_HELD_BACK = frozenset(reason.value for reason in HELD_BACK)


@dataclass(frozen=True, slots=True)
class Interval:
    """From when to when a job is expected to start, in whole minutes.

    Without `latest`, the end is unknown.
    """

    earliest: datetime
    latest: datetime | None = None

    @classmethod
    def of(cls, earliest: datetime, latest: datetime | None) -> "Interval":
        """Returns the interval rounded outwards to minutes, as it is shown."""
        first = earliest.replace(second=0, microsecond=0)
        if latest is None:
            return cls(first)
        last = latest.replace(second=0, microsecond=0)
        return cls(first, last if last == latest else last + _MINUTE)

    def has(self, moment: datetime) -> bool:
        # An interval ends with its last minute, because it is read as a time of the day.
        late = self.latest is not None and moment >= self.latest + _MINUTE
        return self.earliest <= moment and not late


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How many of the newest first ranges held."""

    held: int = 0
    of: int = 0

    @property
    def may_publish(self) -> bool:
        return self.of < OUTCOMES_MIN or self.held >= HELD_FRACTION_MIN * self.of


@dataclass(frozen=True, slots=True)
class Forecast:
    """One calculation: the intervals by UID, and the outcomes of earlier ones.

    A pending job without an interval has no range.
    """

    computed_at: datetime
    intervals: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    outcomes: Outcomes = field(default_factory=Outcomes)


def may_start(job: GPUJob, status: GPUJobStatus) -> bool:
    """Returns whether the job is pending and nothing but GPUs and quota keeps it from starting."""
    scheduled = find(status, SCHEDULED)
    return (
        status.phase is JobPhase.PENDING
        and status.placement is None
        and not job.spec.suspend
        and job.metadata.deletion_timestamp is None
        and (scheduled is None or scheduled.reason not in _HELD_BACK)
    )


def without_range(job: GPUJob, status: GPUJobStatus) -> StartRange | None:
    """Returns the status's range, cleared if the status has the job placed or not to start.

    A placement within the first range is recorded. A job that may not start gets another first
    range later.
    """
    known = status.start
    if known is None or may_start(job, status):
        return known
    placed_at = status.attempt_started_at
    if status.placement is None or placed_at is None:
        return known if known.first_held is not None else None
    if known.first_held is not None or known.first_earliest is None:
        held = known.first_held
    elif known.first_latest is None:
        # It has no end that could be missed.
        held = None
    else:
        held = Interval(known.first_earliest, known.first_latest).has(placed_at)
    return replace(known, earliest=None, latest=None, computed_at=None, first_held=held)


def with_forecast(job: GPUJob, forecast: Forecast, now: datetime) -> StartRange | None:
    """Returns the range that the job's status has after this calculation.

    The same object is returned if there is nothing to write.
    """
    known = job.status.start
    interval = forecast.intervals.get(job.metadata.uid)
    if interval is None or not may_start(job, job.status) or _is_over(interval, now):
        return _cleared(known)
    before = known or StartRange()
    if job.status.attempt == 0 and before.first_earliest is None:
        before = replace(before, first_earliest=interval.earliest, first_latest=interval.latest)
    if not forecast.outcomes.may_publish:
        return _cleared(known if before == known else before)
    if before == known and not _is_news(before, interval, forecast.computed_at):
        return known
    return replace(
        before,
        earliest=interval.earliest,
        latest=interval.latest,
        computed_at=forecast.computed_at,
    )


def _cleared(known: StartRange | None) -> StartRange | None:
    if known is None or known.computed_at is None:
        return known
    return replace(known, earliest=None, latest=None, computed_at=None)


def _is_over(interval: Interval, now: datetime) -> bool:
    return interval.latest is not None and now >= interval.latest + _MINUTE


def _is_news(known: StartRange, interval: Interval, at: datetime) -> bool:
    if known.computed_at is None or known.earliest is None:
        return True
    if at - known.computed_at >= RENEWED_AFTER or (known.latest is None) != (
        interval.latest is None
    ):
        return True
    wait = max(interval.earliest - at, timedelta())
    least = max(CHANGE_FRACTION * wait, CHANGE_MIN)
    ends = [(known.earliest, interval.earliest)]
    if known.latest is not None and interval.latest is not None:
        ends.append((known.latest, interval.latest))
    return any(abs(one - other) > least for one, other in ends)


def shown_range(job: GPUJob, now: datetime) -> Interval | None:
    """Returns the job's range, or None if it has none that still counts."""
    known = job.status.start
    if known is None or known.earliest is None or known.computed_at is None:
        return None
    interval = Interval(known.earliest, known.latest)
    stale = now - known.computed_at > STALE
    return None if stale or _is_over(interval, now) or not may_start(job, job.status) else interval


def outcomes_of(jobs: Iterable[GPUJob]) -> Outcomes:
    """Returns the outcomes of the jobs that started last."""
    return outcomes_among(newest(results_of(jobs)))


class Result(NamedTuple):
    """When a job started, and whether its first range held."""

    started_seconds: float
    held: bool


def results_of(jobs: Iterable[GPUJob]) -> dict[str, Result]:
    """Returns the results of the jobs, by UID, that have one."""
    found: dict[str, Result] = {}
    for job in jobs:
        status = job.status
        at = status.started_at or status.attempt_started_at
        if status.start is not None and status.start.first_held is not None and at is not None:
            found[job.metadata.uid] = Result(at.timestamp(), status.start.first_held)
    return found


def newest(results: Mapping[str, Result]) -> dict[str, Result]:
    """Returns the results that count."""
    ordered = sorted(results, key=lambda uid: (results[uid].started_seconds, uid))
    return {uid: results[uid] for uid in ordered[-OUTCOMES_MAX:]}


def outcomes_among(results: Mapping[str, Result]) -> Outcomes:
    return Outcomes(sum(result.held for result in results.values()), len(results))
