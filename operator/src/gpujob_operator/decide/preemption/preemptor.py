"""Whom to interrupt for a waiting job: who may be asked, and whether it is worth it.

`victims` finds the cheapest way for given victims; here is who they are. Kept for one cycle, so
that thousands of waiting jobs ask the running ones once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.stop_reasons import MOVED, PREEMPTED, RECLAIMED
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.gpu_filter import least_reservation_bytes
from gpujob_operator.decide.placement.requirements import CycleView, JobRequirements
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds
from gpujob_operator.decide.preemption.victims import (
    VICTIMS_MAX,
    PreemptionTargets,
    Victim,
    all_reschedulable,
    is_preemptible,
    pays_off,
    select_victims,
)
from gpujob_operator.decide.queue.pending import waited_seconds, written_recently
from gpujob_operator.decide.queue.quota import QuotaState

# Looking for whom to interrupt reads every GPU: so often a cycle.
SEARCHES_MAX = 4


@dataclass(slots=True)
class Preemptor:
    """`stops` are the attempts that end for others, by job UID."""

    board: AssumedCapacity
    queues: QuotaState
    configuration: Configuration
    now: datetime
    view: CycleView
    stops: dict[str, StopReason] = field(default_factory=dict[str, StopReason])
    _costs: dict[str, float] = field(default_factory=dict[str, float])
    _searches: int = 0
    _stopping: list[GPUJob] | None = None

    @property
    def exhausted(self) -> bool:
        """Whether nobody more is looked for in this cycle."""
        return self._searches >= SEARCHES_MAX

    def targets_in_quota(
        self, needs: JobRequirements, memory_bytes: int, *, fits: bool
    ) -> PreemptionTargets | None:
        """The cheapest jobs of its queues without which the job is within its quota and has GPUs;
        None when none help. `fits`: on GPUs it does already."""
        if self.exhausted or not self.may_preempt(needs):
            return None
        self._searches += 1
        cohort = self.queues.cohort(needs.job.spec.queue)
        candidates = {
            uid: victim
            for uid, victim in self._victims(needs).items()
            if self.queues.cohort(victim.job.spec.queue) == cohort
        }
        targets = PreemptionTargets((), frozenset())
        if not fits:
            # Quota alone would not let it start, and others would take what was given up.
            found = select_victims(needs, self.board, candidates, self.configuration)
            if found is None:
                return None
            targets = found
        chosen = list(targets.victims)
        others = sorted(
            (victim for victim in candidates.values() if victim not in targets.victims),
            key=lambda victim: (victim.cost_gpu_seconds, victim.job.metadata.uid),
        )
        while self._exceeds(needs, memory_bytes, chosen):
            if not others or len(chosen) >= VICTIMS_MAX:
                return None
            chosen.append(others.pop(0))
        return replace(targets, victims=tuple(chosen))

    def _exceeds(self, needs: JobRequirements, memory_bytes: int, gone: list[Victim]) -> bool:
        """Whether the job would be over its quota with these gone."""
        with self.queues.simulate_removal([victim.job for victim in gone]):
            return bool(self.queues.quota_shortfall(needs.job, memory_bytes))

    def targets_on_gpus(
        self, needs: JobRequirements, start_seconds: float
    ) -> PreemptionTargets | None:
        """Whom to interrupt so that the job fits on GPUs; None when nobody should be. Without that
        it could start in `start_seconds`."""
        if self.exhausted:
            return None
        victims = self._victims(needs)
        if victims:
            self._searches += 1
            targets = select_victims(needs, self.board, victims, self.configuration)
            if targets is not None and self._stays_within_borrowed(needs, targets):
                return targets
        return self._consolidation(needs, start_seconds)

    def _consolidation(
        self, needs: JobRequirements, start_seconds: float
    ) -> PreemptionTargets | None:
        """Moving others closer together, when this job is told anew that it waits."""
        waited = waited_seconds(needs.job, self.now)
        told = written_recently(needs.job, self.configuration, self.now)
        if told or waited < self.configuration.consolidate_after_seconds:
            return None
        movable = {
            uid: Victim(job, MOVED, self._cost(job))
            for uid, job in self.view.running.items()
            if job.status.checkpoint is not None and self._is_free_to_interrupt(job)
        }
        self._searches += 1
        targets = (
            select_victims(needs, self.board, movable, self.configuration) if movable else None
        )
        if targets is None:
            return None
        # Who has waited this long is expected to wait as long again.
        saved = min(start_seconds, waited)
        gpus = needs.job.spec.workers * needs.job.spec.gpus_per_worker
        if not pays_off(targets, gpus, saved):
            return None
        fits = all_reschedulable(targets, self.board, self.view, self.configuration)
        return targets if fits else None

    def may_preempt(self, needs: JobRequirements) -> bool:
        """Whether anybody could have to make room for the job; asked of every waiting one."""
        job = needs.job
        if job.spec.priority > self.view.lowest_priority:
            return True
        if not self.queues.by_name:
            return False
        lenders = (name for name, use in self.queues.use.items() if use.jobs)
        borrow = any(self.queues.can_be_reclaimed_for(name, job.spec.queue) for name in lenders)
        if not borrow:
            return False
        return self.queues.fits_in_nominal(
            job, least_reservation_bytes(needs, self.board, self.configuration)
        )

    def _victims(self, needs: JobRequirements) -> dict[str, Victim]:
        """Who may be interrupted for the job, and why.

        A job that would borrow never takes from those who do not, whatever its priority: they
        would have the right to take it back.
        """
        job = needs.job
        memory_bytes = least_reservation_bytes(needs, self.board, self.configuration)
        fits_in_nominal = self.queues.fits_in_nominal(job, memory_bytes)
        would_borrow = self.queues.would_borrow(job, memory_bytes)
        found: dict[str, Victim] = {}
        for uid, other in self.view.running.items():
            queue = other.spec.queue
            ours = queue == job.spec.queue
            if other.spec.priority < job.spec.priority and (
                ours or not would_borrow or self.queues.is_borrowing(queue)
            ):
                reason = PREEMPTED
            elif fits_in_nominal and self.queues.can_be_reclaimed_for(queue, job.spec.queue):
                reason = RECLAIMED
            else:
                continue
            if self._is_free_to_interrupt(other):
                found[uid] = Victim(other, reason, self._cost(other))
        return found

    def _stays_within_borrowed(self, needs: JobRequirements, targets: PreemptionTargets) -> bool:
        """No queue gives back more than it borrowed."""
        taken: list[GPUJob] = []
        for victim in targets.victims:
            with self.queues.simulate_removal(taken):
                reclaimable = self.queues.can_be_reclaimed_for(
                    victim.job.spec.queue, needs.job.spec.queue
                )
            if victim.reason == RECLAIMED and not reclaimable:
                return False
            taken.append(victim.job)
        return True

    def interrupt(self, needs: JobRequirements, victims: Iterable[Victim]) -> str:
        """Ends the victims' attempts from this cycle on; says for whom the job waits."""
        chosen = list(victims)
        for victim in chosen:
            text = (
                f"makes room for {needs.job.metadata.namespace}/{needs.job.metadata.name} "
                f"({_preemption_reason(victim, needs.job)}); "
                f"loses {victim.cost_gpu_seconds:.0f} GPU-seconds"
            )
            deadline = self.now + timedelta(seconds=stop_seconds(victim.job, self.configuration))
            self.stops[victim.job.metadata.uid] = StopReason(victim.reason, text, deadline)
        return waiting_message([victim.job for victim in chosen])

    def _is_free_to_interrupt(self, job: GPUJob) -> bool:
        return job.metadata.uid not in self.stops and is_preemptible(job, self.configuration)

    def _cost(self, job: GPUJob) -> float:
        uid = job.metadata.uid
        if uid not in self._costs:
            started = job.status.attempt_started_at or self.now
            age = max((self.now - started).total_seconds(), 0.0)
            self._costs[uid] = interruption_gpu_seconds(job, self.configuration, age)
        return self._costs[uid]

    def being_preempted(self, cohort: str) -> list[GPUJob]:
        """Jobs of a parent's queues whose attempts are ending."""
        if self._stopping is None:
            self._stopping = [
                job for job in self.view.running.values() if job.status.phase is JobPhase.STOPPING
            ]
        stopped = (self.view.running[uid] for uid in self.stops)
        ending = (*self._stopping, *stopped)
        return [job for job in ending if self.queues.cohort(job.spec.queue) == cohort]


def waiting_message(jobs: Iterable[GPUJob]) -> str:
    names = sorted(f"{job.metadata.namespace}/{job.metadata.name}" for job in jobs)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"waiting for {', '.join(names[:3])}{more} to stop and free capacity"


def _preemption_reason(victim: Victim, job: GPUJob) -> str:
    if victim.reason == PREEMPTED:
        return f"priority {job.spec.priority} over {victim.job.spec.priority}"
    if victim.reason == RECLAIMED:
        return f"queue {victim.job.spec.queue} borrows what is queue {job.spec.queue}'s"
    return "it fits elsewhere"
