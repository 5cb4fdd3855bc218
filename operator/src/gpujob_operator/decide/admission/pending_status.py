"""The Scheduled condition of a pending job: reason, message, position and estimated start."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.backfill.nomination import Nomination
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import EventNote, NextStep
from gpujob_operator.decide.placement.assign import Assignment
from gpujob_operator.decide.queue.pending import Pending
from gpujob_operator.decide.queue.quota import QuotaState

LATER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wait:
    reason: PendingReason
    # Computed on demand, because most jobs already show their reason.
    tell: Callable[[], str]
    next_seconds: float | None = None
    # Position among the jobs that wait for GPUs; 0 if the job waits for something else.
    position: int = 0
    # The earliest start, if it was computed.
    nomination: Nomination | None = None
    # What the job would reserve on each GPU, if only quota is missing.
    memory_bytes: int = 0
    # Whether the job fits on GPUs, if only quota is missing.
    fits: bool = False


def not_eligible(entry: Pending, queues: QuotaState, now: datetime) -> Wait | None:
    job = entry.job
    if job.spec.suspend:
        return Wait(PendingReason.SUSPENDED, lambda: "spec.suspend is true")
    missing = queues.unknown_queue(job)
    if missing:
        return Wait(PendingReason.QUEUE_NOT_FOUND, lambda: missing)
    live = [pod.name for pod in entry.pods if not pod.finished]
    if live:
        return Wait(
            PendingReason.OLD_ATTEMPT_ENDING, lambda: f"waiting for {', '.join(live[:3])} to end"
        )
    at = job.status.next_attempt_at
    if at is not None and at > now:
        left = (at - now).total_seconds()
        before = conditions.find(job.status, conditions.SCHEDULED)
        message = before.message if before is not None else f"retry in {left:.0f} s"
        return Wait(PendingReason.WAITING_FOR_RETRY, lambda: message, next_seconds=left)
    return None


def placed(job: GPUJob, found: Assignment, now: datetime) -> NextStep:
    """The status with the placement. It is durable before any pod exists."""
    placement, reservation = found.placement, found.reservation
    where = ", ".join(sorted({worker.node for worker in placement.workers}))
    gpus = ", ".join(uuid for worker in placement.workers for uuid in worker.gpus[:4])
    held = format_memory(reservation.memory_bytes)
    text = (
        f"attempt {job.status.attempt + 1} on {where} ({gpus}), reserves {held} on each GPU "
        f"({reservation.source.value}{', spot' if placement.spot else ''})"
    )
    status = changed(
        job.status,
        phase=JobPhase.STARTING,
        attempt=job.status.attempt + 1,
        placement=placement,
        reservation=reservation,
        next_attempt_at=None,
        attempt_started_at=now,
        progressed_at=None,
        stop=None,
        failure=None,
    )
    writer = ConditionWriter(job, now)
    status = writer.set(status, conditions.SCHEDULED, True, "Placed", text)
    # The same condition as while the pods are being created, which saves a write.
    status = writer.set(status, conditions.RUNNING, False, "Starting", "creating pods")
    return NextStep(status, events=(EventNote("Placed", text),), next_seconds=0.0)
