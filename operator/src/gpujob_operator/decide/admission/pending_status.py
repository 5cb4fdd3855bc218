"""The Scheduled condition of a pending job: reason, message, position and estimated start."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.backfill.nomination import Nomination, describe_start
from gpujob_operator.decide.measurement.profile import profile_name, with_own_measurement
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import past_grace
from gpujob_operator.decide.model.pending_reasons import NO_TURN, PendingReason
from gpujob_operator.decide.model.placement_record import (
    PlacementRecord,
    placed_status,
    placement_message,
)
from gpujob_operator.decide.model.plan import EventNote, NextStep
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.spec_refusals import is_edited_since_refused
from gpujob_operator.decide.model.waiting_time import HELD_BACK, held_back, let_go
from gpujob_operator.decide.placement.assign import Assignment
from gpujob_operator.decide.placement.diagnosis import Diagnosis
from gpujob_operator.decide.preemption.use import barred_text
from gpujob_operator.decide.queue.pending import Pending, written_recently
from gpujob_operator.decide.queue.quota import QuotaState

# The reason of this many classes is renewed in one cycle. The next cycle follows after
# `LATER_SECONDS` and continues.
EXPLANATIONS_MAX = 16
LATER_SECONDS = 1.0
# An autoscaler reacts to pods, and the job has none yet.
NEW_NODE = "only a new node could hold the job, and no autoscaler is asked for one: "


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job is not admitted now."""

    reason: PendingReason
    # A diagnosis is formatted only if the job does not show its reason already.
    text: str | Diagnosis
    next_seconds: float | None = None
    # Position among the jobs that wait for GPUs. 0 if the job waits for something else.
    position: int = 0
    # The earliest start, if it was computed.
    nomination: Nomination | None = None
    # What the job would reserve on each GPU, if only quota is missing.
    memory_bytes: int = 0
    # Whether the job fits on GPUs, if only quota is missing.
    fits: bool = False
    # Follows the text.
    note: str = ""

    @property
    def message(self) -> str:
        text = self.text if isinstance(self.text, str) else self.text.message
        text += self.note
        return NEW_NODE + text if self.reason is PendingReason.NEEDS_NEW_NODE else text


def not_eligible(entry: Pending, queues: QuotaState, now: datetime) -> Wait | None:
    job = entry.job
    if job.spec.suspend:
        return Wait(PendingReason.SUSPENDED, "spec.suspend is true")
    missing = queues.unknown_queue(job)
    if missing:
        return Wait(PendingReason.QUEUE_NOT_FOUND, missing)
    refusal = queues.refusal(job)
    if refusal:
        return Wait(PendingReason.INADMISSIBLE, refusal)
    live = [pod for pod in entry.pods if not pod.finished]
    if live:
        return _old_attempt(live, now)
    at = job.status.next_attempt_at
    if at is not None and at > now and not is_edited_since_refused(job):
        left = (at - now).total_seconds()
        before = conditions.find(job.status, conditions.SCHEDULED)
        if before is None or before.reason != PendingReason.BACKING_OFF.value:
            # Something else was in the way meanwhile. The end of the attempt stays here.
            before = conditions.find(job.status, conditions.RUNNING)
        message = before.message if before is not None else f"retry in {left:.0f} s"
        return Wait(PendingReason.BACKING_OFF, message, next_seconds=left)
    return None


def _old_attempt(pods: list[PodView], now: datetime) -> Wait:
    text = f"waiting for {', '.join(pod.name for pod in pods[:3])} to end"
    late, next_seconds = past_grace(pods, now)
    text += f"; {late}" if late else ""
    return Wait(PendingReason.PREVIOUS_ATTEMPT_TERMINATING, text, next_seconds)


def placed(job: GPUJob, found: Assignment, now: datetime, attempt: int) -> NextStep:
    """Returns the step with the placement.

    The status, or the record on the attempt's only pod, is durable before any process of the
    attempt exists.
    """
    job = with_own_measurement(job)
    record = PlacementRecord(
        job.metadata.uid, found.placement, found.reservation, profile_name(job), now, job.spec.queue
    )
    note = EventNote("Placed", placement_message(job, record, attempt))
    return NextStep(placed_status(job, record, attempt), events=(note,), next_seconds=0.0)


class PendingJobs(Protocol):
    """What the writer needs about a job whose wait is put into words.

    It is passed with each job and not stored. A stored reference would be a cycle, which would keep
    all of a cycle's objects alive until garbage collection.
    """

    def signature_of(self, job: GPUJob) -> Hashable:
        """Returns the signature. Jobs of one signature wait for the same reason."""
        ...

    def nominate(self, job: GPUJob) -> Nomination | None:
        """Returns the earliest start of a job, if it is known or may still be computed."""
        ...


@dataclass(slots=True)
class PendingStatusWriter:
    """Writes the status of pending jobs in one cycle."""

    configuration: Configuration
    now: datetime
    _explained: set[Hashable] = field(default_factory=set[Hashable])

    def step(self, job: GPUJob, wait: Wait, jobs: PendingJobs) -> NextStep:
        """Returns the job's step. Its condition gives the reason for the wait, written at a bounded
        rate.
        """
        before = conditions.find(job.status, conditions.SCHEDULED)
        is_new = before is None or before.reason != wait.reason
        if not is_new and written_recently(job, self.configuration, self.now):
            # This keeps thousands of pending jobs with an unchanged reason cheap.
            return NextStep(job.status, next_seconds=wait.next_seconds)
        if not is_new and not self._may_explain(jobs.signature_of(job)):
            return NextStep(job.status, next_seconds=LATER_SECONDS)
        message = wait.message
        if wait.position and wait.reason not in NO_TURN:
            message += f"; position {wait.position} of the jobs waiting for GPUs"
        message += self._estimate(job, wait, jobs)
        if wait.reason in (PendingReason.INSUFFICIENT_CAPACITY, PendingReason.OVER_QUOTA):
            barred = barred_text(job, self.now)
            message += f"; {barred}" if barred else ""
        writer = ConditionWriter(job, job.status, self.now)
        writer.set(conditions.SCHEDULED, False, wait.reason.value, message)
        is_held_back = wait.reason in HELD_BACK
        waiting = held_back(job, self.now) if is_held_back else let_go(job, self.now)
        status = writer.status(phase=JobPhase.PENDING, **waiting)
        events = (EventNote(wait.reason.value, message),) if is_new else ()
        return NextStep(status, events=events, next_seconds=wait.next_seconds)

    def _may_explain(self, signature: Hashable) -> bool:
        """Returns whether the reason of the class is renewed in this cycle."""
        if signature not in self._explained and len(self._explained) < EXPLANATIONS_MAX:
            self._explained.add(signature)
        return signature in self._explained

    def _estimate(self, job: GPUJob, wait: Wait, jobs: PendingJobs) -> str:
        """Returns the estimated start of a job that waits for GPUs, or ""."""
        if wait.reason is not PendingReason.INSUFFICIENT_CAPACITY:
            return ""
        nomination = wait.nomination or jobs.nominate(job)
        text = describe_start(nomination) if nomination is not None else ""
        return f"; {text}" if text else ""
