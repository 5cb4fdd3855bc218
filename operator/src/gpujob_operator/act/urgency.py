"""Which writes can wait a little where slots are short: those that only tell what is so already.

A placement, a stop, an end and all that creates or deletes goes first, because GPUs or people wait
for it. A status that waits and is older than the next one need not be written at all.
"""

from collections.abc import Sequence

from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_operator.decide.model.assumption import places
from gpujob_operator.decide.model.plan import (
    PlanItem,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)

_BEGAN_TO_RUN = (JobPhase.STARTING, JobPhase.RUNNING)


def only_tells(item: PlanItem) -> bool:
    """True for a write that takes nothing, frees nothing and stops nothing."""
    match item:
        case WriteStatus():
            return _only_tells(item.job.status, item.status)
        case WriteQueueStatus() | SaveProfile():
            return True
        case _:
            return False


def in_place_of(older: WriteStatus, assumed: GPUJobStatus, newer: PlanItem) -> WriteStatus | None:
    """One write in place of two, from the state before `older` to the state after `newer`.

    None if `older` has to be written by itself: something waits for it, or `newer` was not decided
    on the `assumed` status of `older`, or on another state of the job, or for another attempt.
    """
    if not isinstance(newer, WriteStatus) or not only_tells(older):
        return None
    if newer.job.metadata != older.job.metadata or newer.job.status != assumed:
        return None
    if newer.status.attempt != older.status.attempt:
        return None
    return WriteStatus(older.job, newer.status, older.events + newer.events)


def is_outdated_by(older: PlanItem, newer: Sequence[PlanItem]) -> bool:
    """True for the status that says why a job waits, where the job does not wait any longer."""
    says_why = isinstance(older, WriteStatus) and older.status.phase is JobPhase.PENDING
    return says_why and only_tells(older) and not all(map(only_tells, newer))


def _only_tells(before: GPUJobStatus, after: GPUJobStatus) -> bool:
    phases = before.phase, after.phase
    return (
        (before.phase is after.phase or phases == _BEGAN_TO_RUN)
        and after.attempt == before.attempt
        and places(after) == places(before)
        and after.reservation == before.reservation
        and after.stop == before.stop
    )
