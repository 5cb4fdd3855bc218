"""The admission pass over the pending jobs: which ones get GPUs in this cycle, which jobs are
preempted for them, and the reason written to the others.

The order is that of `queue.heads`. A job that does not fit first checks whether capacity will be
free soon. Otherwise it may preempt (`preemption`). After a long wait, GPUs are nominated for it
(`backfill.nomination`), which only jobs expected to finish in time may still use.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.admission.equivalence import Refused
from gpujob_operator.decide.admission.pending_status import (
    LATER_SECONDS,
    Wait,
    not_eligible,
    placed,
)
from gpujob_operator.decide.backfill.earliest_start import Candidates, candidates
from gpujob_operator.decide.backfill.nomination import Nomination, describe_start, earliest_start
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import EventNote, NextStep
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.diagnosis import Diagnosis
from gpujob_operator.decide.placement.gpu_filter import least_reservation_bytes
from gpujob_operator.decide.placement.requirements import CycleView, JobRequirements
from gpujob_operator.decide.preemption.preemptor import Preemptor, waiting_message
from gpujob_operator.decide.queue.heads import QueueHeads
from gpujob_operator.decide.queue.pending import (
    OrderedQueues,
    Pending,
    waited_seconds,
    written_recently,
)
from gpujob_operator.decide.queue.quota import QuotaState

# How many pending jobs may have nominated GPUs.
NOMINATIONS_MAX = 8
# A search for the earliest start reads every GPU, so it runs for this many classes a cycle.
CANDIDATES_MAX = 2
# The reason of this many classes is renewed in one cycle; the next cycle, this much later,
# continues.
EXPLANATIONS_MAX = 16


@dataclass(slots=True)
class Admission:
    """One pass. `steps` has the next steps of the pending jobs; `preemptor.stops` has
    the victims.
    """

    board: AssumedCapacity
    queues: QuotaState
    releases: ReleaseTimes
    tenancy_of: Callable[[Capacity], Tenancy]
    configuration: Configuration
    now: datetime
    view: CycleView
    steps: dict[str, NextStep] = field(default_factory=dict[str, NextStep])
    preemptor: Preemptor = field(init=False)
    _nominations: int = 0
    _refused: dict[int, "Refused"] = field(default_factory=dict[int, "Refused"])
    _explained: set[Hashable] = field(default_factory=set[Hashable])
    _held: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _candidates: dict[Hashable, tuple[Candidates, ...]] = field(
        default_factory=dict[Hashable, tuple[Candidates, ...]]
    )
    _position: int = 0

    def __post_init__(self) -> None:
        self.preemptor = Preemptor(
            board=self.board,
            queues=self.queues,
            configuration=self.configuration,
            now=self.now,
            view=self.view,
        )

    def admit(self, lines: OrderedQueues) -> None:
        """Decides every pending job in order. All workers of a job are placed or none (I11)."""
        line = QueueHeads(lines, self.queues, self.board.capacity.size, self._memory_bytes)
        state = self._state()
        for entry in line:
            if self._is_still_refused(entry, state):
                self._position += 1
            else:
                self.steps[entry.job.metadata.uid] = self._step(entry)
                state = self._state()

    def _is_still_refused(self, entry: Pending, state: tuple[int, ...]) -> bool:
        """True if an equivalent job was refused in this same state and this job already shows that
        reason. Such a job is skipped, so thousands of pending jobs cost next to nothing."""
        last_reason, refused = entry.last_reason, self._refused.get(entry.equivalence_class)
        if last_reason is None or refused is None or self.now >= last_reason.until:
            return False
        if refused.reason.value != last_reason.reason or refused.state != state:
            return False
        if self.now >= last_reason.starved_at and not self._starvation_is_idle(
            entry.job, refused.reason
        ):
            return False
        return refused.by_backfill or not self.board.may_backfill(
            self.releases.expected_run_seconds(entry.job)
        )

    def _starvation_is_idle(self, job: GPUJob, reason: PendingReason) -> bool:
        """True if nothing more can be nominated for a job, however long it has waited."""
        if reason is PendingReason.OVER_QUOTA:
            return job.spec.queue in self.queues.quota_held
        return self._nominations >= NOMINATIONS_MAX

    def _state(self) -> tuple[int, ...]:
        """The state that a refusal depends on. During a pass free capacity only decreases."""
        quota = self.queues.version if self.queues.by_name else 0
        return (
            quota,
            len(self.queues.quota_held),
            len(self.board.nominated),
            len(self.preemptor.stops),
        )

    def _remember_refusal(self, entry: Pending, needs: JobRequirements, wait: Wait) -> None:
        """Remembers that the class was refused, if nothing can be done for its other
        jobs either.
        """
        if not entry.equivalence_class or wait.reason not in (
            PendingReason.NO_ROOM,
            PendingReason.OVER_QUOTA,
        ):
            return
        quota = wait.reason is PendingReason.OVER_QUOTA
        spent = self.preemptor.exhausted if quota else self._nominations >= NOMINATIONS_MAX
        preemption_in_flight = self.view.preemption_in_flight
        if not spent and (preemption_in_flight or self.preemptor.may_preempt(needs)):
            return
        if quota and self.preemptor.being_preempted(self.queues.cohort(needs.job.spec.queue)):
            return
        by_backfill = not self.board.nominated or self.board.refuses_backfill(
            needs.scheduling_signature
        )
        self._refused[entry.equivalence_class] = Refused(wait.reason, self._state(), by_backfill)

    def _step(self, entry: Pending) -> NextStep:
        wait = not_eligible(entry, self.queues, self.now)
        if wait is not None:
            return self._wait(entry.job, wait)
        needs = self._needs_of(entry.job)
        found = self._place(needs)
        if isinstance(found, Assignment):
            found.assume(self.board)
            step = placed(entry.job, found, self.now)
            self.queues.add(entry.job, step.status)
            return step
        self._position += 1
        wait = self._without_room(needs, found)
        self._remember_refusal(entry, needs, wait)
        return self._wait(entry.job, wait)

    def _place(self, needs: JobRequirements) -> Assignment | Wait:
        length = self.releases.expected_run_seconds(needs.job) if self.board.nominated else inf
        found = assign(needs, self.board, self.configuration, length)
        if isinstance(found, Diagnosis) and not found.could_ever_fit:
            return Wait(PendingReason.IMPOSSIBLE, lambda: found.message)
        if self.queues.by_name:
            fits = isinstance(found, Assignment)
            held = found.reservation.memory_bytes if fits else self._least_reservation_bytes(needs)
            over = self.queues.quota_shortfall(needs.job, held)
            if over:
                return Wait(PendingReason.OVER_QUOTA, lambda: over, memory_bytes=held, fits=fits)
        return (
            found
            if isinstance(found, Assignment)
            else Wait(PendingReason.NO_ROOM, lambda: found.message)
        )

    # -- a job that does not fit now

    def _without_room(self, needs: JobRequirements, wait: Wait) -> Wait:
        """Handles a job that does not fit: preempts, nominates, or gives the reason."""
        nomination = None
        making = ""
        if wait.reason is PendingReason.OVER_QUOTA:
            making = self._room_in_quota(needs, wait)
        elif wait.reason is PendingReason.NO_ROOM:
            nomination = self._earliest_start(needs)
            making = self._room_on_gpus(needs, nomination) if nomination is not None else ""
        told = (
            replace(wait, reason=PendingReason.MAKING_ROOM, tell=lambda: making) if making else wait
        )
        return replace(told, position=self._position, nomination=nomination)

    def _room_in_quota(self, needs: JobRequirements, wait: Wait) -> str:
        """Preempts jobs whose quota this job may reclaim. Returns the waiting message."""
        leaving = self.preemptor.being_preempted(self.queues.cohort(needs.job.spec.queue))
        with self.queues.simulate_removal(leaving):
            if not self.queues.quota_shortfall(needs.job, wait.memory_bytes):
                return waiting_message(leaving)
            targets = self.preemptor.targets_in_quota(needs, wait.memory_bytes, fits=wait.fits)
        if targets is not None and targets.victims:
            self.board.nominate(
                targets.nominated, self._stop_seconds(v.job for v in targets.victims)
            )
            return self.preemptor.interrupt(needs, targets.victims)
        if self._is_starved(needs.job):
            self.queues.hold_quota(needs.job, wait.memory_bytes)
        return ""

    def _room_on_gpus(self, needs: JobRequirements, nomination: Nomination) -> str:
        """Preempts for the job where it may, or nominates GPUs. Returns the waiting message."""
        jobs = [self.releases.jobs[uid] for uid in nomination.making_room]
        if jobs and nomination.start_seconds <= self._stop_seconds(jobs):
            self._hold_gpus(nomination)
            return waiting_message(jobs)
        if nomination.start_seconds > self.configuration.preemption_wait_seconds:
            targets = self.preemptor.targets_on_gpus(needs, nomination.start_seconds)
            if targets is not None:
                self.board.nominate(
                    targets.nominated, self._stop_seconds(v.job for v in targets.victims)
                )
                return self.preemptor.interrupt(needs, targets.victims)
        if self._is_starved(needs.job):
            self._hold_gpus(nomination)
        return ""

    def _stop_seconds(self, jobs: Iterable[GPUJob]) -> float:
        """Seconds until the last of these jobs is stopped."""
        return max((stop_seconds(job, self.configuration) for job in jobs), default=0.0)

    def _earliest_start(self, needs: JobRequirements) -> Nomination | None:
        """The earliest start, computed only if the result can be used."""
        acts = (
            self._is_starved(needs.job)
            or self.preemptor.may_preempt(needs)
            or self.view.preemption_in_flight
        )
        if not acts or self._nominations >= NOMINATIONS_MAX:
            return None
        self._nominations += 1
        return self._nomination(needs)

    def _nomination(self, needs: JobRequirements) -> Nomination | None:
        """The nomination of the job's class, computed at most once a cycle and for a bounded number
        of classes.
        """
        if needs.scheduling_signature not in self._candidates:
            if len(self._candidates) >= CANDIDATES_MAX:
                return None
            capacity = self.board.capacity
            tenancy = self.tenancy_of(capacity)
            self._candidates[needs.scheduling_signature] = candidates(
                needs, tenancy, capacity, self.board.memo, self.configuration
            )
        found = self._candidates[needs.scheduling_signature]
        return earliest_start(needs, found, self.releases, self.board.nominated)

    def _hold_gpus(self, nomination: Nomination) -> None:
        self.board.nominate(nomination.uuids, nomination.start_seconds)

    # -- the job's status

    def _needs_of(self, job: GPUJob) -> JobRequirements:
        return self.view.needs_of(job.metadata.uid)

    def _memory_bytes(self, entry: Pending) -> int:
        return (
            self._least_reservation_bytes(self._needs_of(entry.job)) if self.queues.by_name else 0
        )

    def _least_reservation_bytes(self, needs: JobRequirements) -> int:
        if needs.scheduling_signature not in self._held:
            self._held[needs.scheduling_signature] = least_reservation_bytes(
                needs, self.board, self.configuration
            )
        return self._held[needs.scheduling_signature]

    def _is_starved(self, job: GPUJob) -> bool:
        return waited_seconds(job, self.now) >= self.configuration.claim_after_seconds

    def _wait(self, job: GPUJob, wait: Wait) -> NextStep:
        before = conditions.find(job.status, conditions.SCHEDULED)
        news = before is None or before.reason != wait.reason.value
        if not news and written_recently(job, self.configuration, self.now):
            # Thousands of pending jobs with an unchanged reason cost next to nothing.
            return NextStep(job.status, next_seconds=wait.next_seconds)
        if not news and not self._may_explain(job):
            return NextStep(job.status, next_seconds=LATER_SECONDS)
        message = wait.tell()
        if wait.position:
            message += f"; position {wait.position} of the jobs waiting for GPUs"
        message += self._estimate(job, wait)
        status = changed(job.status, phase=JobPhase.PENDING)
        status = ConditionWriter(job, self.now).set(
            status, conditions.SCHEDULED, False, wait.reason.value, message
        )
        events = (EventNote(wait.reason.value, message),) if news else ()
        return NextStep(status, events=events, next_seconds=wait.next_seconds)

    def _may_explain(self, job: GPUJob) -> bool:
        """True if the reason of the job's class is renewed in this cycle."""
        signature = self._needs_of(job).scheduling_signature
        if signature not in self._explained and len(self._explained) < EXPLANATIONS_MAX:
            self._explained.add(signature)
        return signature in self._explained

    def _estimate(self, job: GPUJob, wait: Wait) -> str:
        """The estimated start of a job that waits for GPUs."""
        if wait.reason is not PendingReason.NO_ROOM:
            return ""
        nomination = wait.nomination or self._nomination(self._needs_of(job))
        text = describe_start(nomination) if nomination is not None else ""
        return f"; {text}" if text else ""
