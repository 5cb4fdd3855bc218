"""How long the record on a pod can replace the status of its job.

Most pods run or end before that, and then one write of the status covers everything.
"""

from dataclasses import replace
from datetime import datetime

from gpujob_api.gpujob import GPUJobStatus
from gpujob_operator.decide.model.plan import NextStep

# A pod that pulls its image takes longer. After this time the status shows users that it starts.
RECORDED_SECONDS_MAX = 5.0


def seconds_to_record(status: GPUJobStatus, now: datetime) -> float:
    """Returns the seconds until the status of an attempt is written, whatever its pod does."""
    placed_at = status.attempt_started_at
    if placed_at is None:
        return 0.0
    # A record from the future comes from a clock that was ahead.
    age = max((now - placed_at).total_seconds(), 0.0)
    return RECORDED_SECONDS_MAX - age


def is_overdue(status: GPUJobStatus, now: datetime) -> bool:
    """Returns whether the status of an attempt that only its pod records has to be written.

    Returns False if it is already being written, because the status then has the time of that
    write.
    """
    placed_at, written_at = status.attempt_started_at, status.observed_at
    if placed_at is not None and written_at is not None and written_at > placed_at:
        return False
    return seconds_to_record(status, now) <= 0


def until_recorded(step: NextStep, now: datetime) -> NextStep:
    """Returns the step of a job that no status has placed yet, bounded by the time of
    that write.
    """
    left = seconds_to_record(step.status, now)
    if left <= 0:
        return step
    return replace(step, next_seconds=min(left, step.next_seconds or left))
