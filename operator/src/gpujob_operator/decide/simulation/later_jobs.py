"""The jobs that are created later, as one draw expects them: those of the last day again.

A later job can start before an earlier one: its queue has used less, it has a higher priority, or
it fits into a gap. Each job of the last day comes again at its time of the day, a random number of
times with a mean of 1. Times of the day with many jobs therefore stay so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import exp

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.simulation.run_lengths import uniform

DAY_SECONDS = 86_400.0
# Without this much of the past, no later jobs are expected.
PAST_SECONDS_MIN = 3600.0
# A job comes again within this much before or after its time of the day.
JITTER_SECONDS = 1800.0
ARRIVALS_MAX = 300
_TIMES_MAX = 5


def later_jobs(
    jobs: Sequence[GPUJob], now: datetime, horizon_seconds: float, draw: int
) -> tuple[GPUJob, ...]:
    """Returns the jobs in the order of their creation, at most `ARRIVALS_MAX`."""
    created = [(at, job) for job in jobs if (at := job.metadata.creation_timestamp) is not None]
    oldest = min((at for at, _ in created), default=now)
    # Of jobs that finished before that, some are deleted.
    first_end = min((at for job in jobs if (at := job.status.finished_at)), default=oldest)
    known_seconds = (now - max(oldest, first_end)).total_seconds()
    if known_seconds < PAST_SECONDS_MIN:
        return ()
    period = timedelta(seconds=min(known_seconds, DAY_SECONDS))
    past = [(at, job) for at, job in created if at > now - period]
    found: list[GPUJob] = []
    start = now
    end = now + timedelta(seconds=horizon_seconds)
    for turn in range(1, 1 + int(horizon_seconds // period.total_seconds()) + 1):
        found += _of_one_period(past, turn, period, draw)
        start += period
        if len(found) > ARRIVALS_MAX or start > end:
            break
    found = [job for job in found if now < _created(job) <= end]
    found.sort(key=lambda job: (_created(job), job.metadata.uid))
    return tuple(found[:ARRIVALS_MAX])


def _of_one_period(
    past: list[tuple[datetime, GPUJob]], turn: int, period: timedelta, draw: int
) -> Iterator[GPUJob]:
    jitter_seconds = min(JITTER_SECONDS, period.total_seconds() / 4)
    for at, job in past:
        uid = job.metadata.uid
        for number in range(_times(uniform("times", uid, turn, draw))):
            name = f"{uid}-again-{turn}-{number}"
            shift = (2 * uniform("shift", name, draw) - 1) * jitter_seconds
            yield _again(job, name, at + turn * period + timedelta(seconds=shift))


def _times(quantile: float) -> int:
    """Returns a number from the Poisson distribution with mean 1."""
    probability = reached = exp(-1.0)
    for number in range(_TIMES_MAX):
        if quantile <= reached:
            return number
        probability /= number + 1
        reached += probability
    return _TIMES_MAX


def _again(job: GPUJob, uid: str, at: datetime) -> GPUJob:
    metadata = replace(
        job.metadata,
        name=f"again-{uid}"[-40:].strip("-."),
        uid=uid,
        generation=1,
        resource_version="",
        creation_timestamp=at,
        deletion_timestamp=None,
    )
    return GPUJob(metadata, replace(job.spec, suspend=False))


def _created(job: GPUJob) -> datetime:
    created = job.metadata.creation_timestamp
    assert created is not None, "set by `_again`"
    return created
