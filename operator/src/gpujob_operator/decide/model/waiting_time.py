"""How long a pending job has waited, counting only time in which it could have started.

The waiting time stands still (`status.heldBackSince`) while the job is suspended, is not admitted
by its queue, or its pods are refused. Afterwards the job counts as arrived that much later.
"""

from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.pending_reasons import PendingReason

HELD_BACK = frozenset(
    {
        PendingReason.SUSPENDED,
        PendingReason.QUEUE_NOT_FOUND,
        PendingReason.INADMISSIBLE,
        PendingReason.SPEC_REJECTED,
        PendingReason.POD_REJECTED,
        PendingReason.CLAIM_NOT_FOUND,
    }
)


def arrival(job: GPUJob) -> datetime | None:
    return job.status.requeued_at or job.metadata.creation_timestamp


def waits_since(job: GPUJob) -> datetime | None:
    """Returns since when the job has been waiting for its next attempt."""
    return job.status.next_attempt_at or arrival(job)


def waited_seconds(job: GPUJob, now: datetime) -> float:
    until = job.status.held_back_since or now
    return (until - (waits_since(job) or until)).total_seconds()


def held_back(job: GPUJob, now: datetime) -> dict[str, Any]:
    """Returns the status changes of a job that cannot start for a reason in `HELD_BACK`."""
    status = job.status
    if status.held_back_since is not None:
        return {}
    # No cycle has looked at a new job before.
    is_new = not status.conditions
    return {"held_back_since": (arrival(job) if is_new else None) or now}


def let_go(job: GPUJob, now: datetime) -> dict[str, Any]:
    """Returns the status changes of a job that can start again."""
    status, since = job.status, job.status.held_back_since
    if since is None:
        return {}
    found = later(job, now - since)
    next_at = status.next_attempt_at
    if next_at is not None and next_at < now:
        found["next_attempt_at"] = next_at + (now - max(since, next_at))
    return {"held_back_since": None, **found}


def later(job: GPUJob, wait: timedelta) -> dict[str, Any]:
    """Returns the status changes of a job whose last `wait` does not count as waiting."""
    arrived = arrival(job)
    return {} if arrived is None else {"requeued_at": arrived + max(wait, timedelta())}
