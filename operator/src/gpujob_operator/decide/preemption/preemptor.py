"""Decides which running jobs may be preempted for a pending job, and whether that pays off.

`victims` finds the cheapest set among given victims, and this module selects the candidates. It
lives for one cycle, so thousands of pending jobs share one scan of the running jobs.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, StopReason
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import LATE_SECONDS, awaited_until, is_awaited, stop_seconds
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.others import name_for, names_for
from gpujob_operator.decide.model.protection import durable_checkpoint
from gpujob_operator.decide.model.services import are_replicas_of_one
from gpujob_operator.decide.model.stop_reasons import MIGRATED, PREEMPTED, RECLAIMED
from gpujob_operator.decide.model.waiting_time import waited_seconds
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.gpu_filter import least_reservation_bytes
from gpujob_operator.decide.placement.requirements import CycleView, JobRequirements
from gpujob_operator.decide.preemption.after_deletions import after_deletions
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds
from gpujob_operator.decide.preemption.replaced_queues import may_be_replaced
from gpujob_operator.decide.preemption.use import barred_seconds
from gpujob_operator.decide.preemption.victims import (
    VICTIMS_MAX,
    PreemptionTargets,
    Victim,
    all_reschedulable,
    can_be_freed,
    is_at_work,
    is_preemptible,
    pays_off,
    select_victims,
)
from gpujob_operator.decide.queue.pending import written_recently
from gpujob_operator.decide.queue.quota import QuotaState

# Candidates are selected in this order:
#
# 1. Jobs that have ended (`ENDED`), or that are being stopped already (`LEAVING`). They are no
#    victims, but no job is stopped if what they leave suffices.
# 2. Jobs of the same queue with a lower priority (`PREEMPTED`).
# 3. If the pending job is entitled, jobs of other queues that borrow (`RECLAIMED`). Priorities do
#    not count between queues, and no queue gives back more than it borrowed.
# 4. If these do not make the job fit and it has waited for `consolidate_after_seconds`, jobs that
#    have a durable checkpoint and fit elsewhere (`MIGRATED`). The migration has to pay off.
#
# Jobs whose node does not respond are never candidates. Jobs that were preempted `preemptions_max`
# times give back what they borrow, but only if no other jobs suffice, and not if the number is 0.

# How many GPUs are read in a cycle to find victims. Each search reads every GPU, and at least
# `SEARCHES_MIN` searches are made.
SEARCHED_GPUS_MAX, SEARCHES_MIN = 32_000, 4
# The reason of a job whose attempt is over. Its GPUs are free in the next cycle.
ENDED = "Ended"
# The reason of a job whose attempt is being stopped, since an earlier cycle.
LEAVING = "Leaving"


@dataclass(frozen=True, slots=True)
class Departures:
    """The jobs that a pending job waits for, in words, and the longest wait in seconds."""

    text: str
    seconds: float


@dataclass(slots=True)
class Preemptor:
    """Selects victims. `stops` has the attempts that are stopped for other jobs, by job UID."""

    assumed: AssumedCapacity
    queues: QuotaState
    configuration: Configuration
    now: datetime
    view: CycleView
    stops: dict[str, StopReason] = field(default_factory=dict[str, StopReason])
    # UIDs of the jobs for which attempts are stopped.
    beneficiaries: set[str] = field(default_factory=set[str])
    _costs: dict[str, float] = field(default_factory=dict[str, float])
    # Classes of jobs, with their rights, for which no victims were found in this cycle. Capacity
    # only shrinks and stopped jobs are no victims any more, so none are found later in the cycle.
    _without_victims: set[Hashable] = field(default_factory=set[Hashable])
    # Whether jobs of a class fit on GPUs without the other jobs of a queue.
    _fitting_alone: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    _searches: int = 0
    _looks_after_ends: int = 0
    _stopping: list[GPUJob] | None = None

    @property
    def exhausted(self) -> bool:
        """True if no more victims are searched for in this cycle."""
        return self._searches >= self._searches_max

    @property
    def _searches_max(self) -> int:
        return self.assumed.capacity.size.scans(SEARCHED_GPUS_MAX, SEARCHES_MIN)

    def targets_in_quota(
        self, requirements: JobRequirements, memory_bytes: int, *, fits: bool
    ) -> PreemptionTargets | None:
        """Returns the cheapest jobs of its root's queues whose removal gives the job quota and
        GPUs.

        Returns None if no jobs do. `fits` means that the job already fits on GPUs.
        """
        if self.exhausted or not self.may_preempt(requirements):
            return None
        self._searches += 1
        root = self.queues.root(requirements.job.spec.queue)
        candidates = {
            uid: victim
            for uid, victim in self._victims(requirements).items()
            if self.queues.root(self.queues.queue_of(victim.job)) == root
        }
        for some in self._by_preference(candidates):
            targets = self._in_quota(requirements, memory_bytes, some, fits=fits)
            if targets is not None:
                return targets
        self._without_victims.add(_class_of(requirements))
        return None

    def _by_preference(self, victims: Mapping[str, Victim]) -> Iterable[Mapping[str, Victim]]:
        """Returns the victims that were not stopped too often yet, then all if these are more."""
        rarely = {
            uid: victim
            for uid, victim in victims.items()
            if victim.reason in (ENDED, LEAVING) or is_preemptible(victim.job, self.configuration)
        }
        return (rarely,) if len(rarely) == len(victims) else (rarely, victims)

    def _in_quota(
        self,
        requirements: JobRequirements,
        memory_bytes: int,
        candidates: Mapping[str, Victim],
        *,
        fits: bool,
    ) -> PreemptionTargets | None:
        job = requirements.job
        targets = PreemptionTargets((), frozenset())
        if not fits:
            # Quota alone would not let the job start, and other jobs would take the freed quota.
            found = self._selected(requirements, candidates)
            if found is None:
                return None
            targets = found
        chosen = list(targets.victims)
        others = sorted(
            (victim for victim in candidates.values() if victim not in chosen),
            key=lambda victim: (victim.cost_gpu_seconds, victim.job.metadata.uid),
        )
        while full := self._full_without(job, memory_bytes, chosen):
            within = [one for one in others if self._is_within(one, full)]
            victim = self._first_to_go(job, within, chosen)
            if victim is None or len(chosen) >= VICTIMS_MAX:
                return None
            chosen.append(victim)
            others.remove(victim)
        for victim in [one for one in reversed(chosen) if one not in targets.victims]:
            fewer = [one for one in chosen if one is not victim]
            spared = not self._full_without(job, memory_bytes, fewer)
            if spared and self._may_all_go(job, fewer):
                chosen = fewer
        return replace(targets, victims=tuple(chosen))

    def _full_without(self, job: GPUJob, memory_bytes: int, gone: list[Victim]) -> set[str]:
        """Returns the queues that would exceed their quota with the job and without
        these victims.
        """
        with self.queues.simulate_removal([victim.job for victim in gone]):
            return self.queues.too_full(job, memory_bytes)

    def _is_within(self, victim: Victim, queues: set[str]) -> bool:
        """Returns whether the victim's quota counts in any of these queues."""
        return not queues.isdisjoint(self.queues.tree.path(self.queues.queue_of(victim.job)))

    def _first_to_go(
        self, job: GPUJob, victims: Iterable[Victim], gone: Iterable[Victim]
    ) -> Victim | None:
        """Returns the first of the victims that may be stopped for the job after the others are
        gone.
        """
        may_go: dict[str, bool] = {}
        with self.queues.simulate_removal([victim.job for victim in gone]):
            for victim in victims:
                if victim.reason != RECLAIMED:
                    return victim
                name = self.queues.queue_of(victim.job)
                if name not in may_go:
                    may_go[name] = self.queues.can_be_reclaimed_for(name, job.spec.queue)
                if may_go[name]:
                    return victim
        return None

    def _may_all_go(self, job: GPUJob, victims: Iterable[Victim]) -> bool:
        """Returns whether all of these victims may be stopped.

        No queue may give back more than it borrowed, or give back in place of another queue.
        """
        return len(self._one_by_one(job, list(victims))) == len(list(victims))

    def _one_by_one(self, job: GPUJob, victims: Iterable[Victim]) -> list[Victim]:
        """Returns as many of these as may be stopped one after the other, in the given order."""
        left, gone = list(victims), list[Victim]()
        while len(gone) < VICTIMS_MAX:
            victim = self._first_to_go(job, left, gone)
            if victim is None:
                break
            left.remove(victim)
            gone.append(victim)
        return gone

    def _selected(
        self, requirements: JobRequirements, victims: Mapping[str, Victim]
    ) -> PreemptionTargets | None:
        """Returns the cheapest of these victims whose removal makes the job fit on GPUs.

        If they would take more from a queue than it has to give back, only victims within that
        amount are considered.
        """
        job = requirements.job
        targets = select_victims(requirements, self.assumed, victims, self.configuration)
        if targets is None or self._may_all_go(job, targets.victims):
            return targets
        by_cost = sorted(
            victims.values(), key=lambda victim: (victim.cost_gpu_seconds, victim.job.metadata.uid)
        )
        allowed = {one.job.metadata.uid: one for one in self._one_by_one(job, by_cost)}
        targets = select_victims(requirements, self.assumed, allowed, self.configuration)
        return targets if targets and self._may_all_go(job, targets.victims) else None

    def targets_on_gpus(
        self, requirements: JobRequirements, start_seconds: float
    ) -> PreemptionTargets | None:
        """Returns the victims whose removal makes the job fit on GPUs, or None if nothing is
        preempted.

        The job could start in `start_seconds` without preemption.
        """
        if self.exhausted or not self._is_let_in(requirements.job):
            return None
        known = _class_of(requirements) in self._without_victims
        victims = self._victims(requirements) if not known else {}
        if victims:
            leaving = [Victim(one, LEAVING, 0.0) for one in self._awaited()]
            leaving += [Victim(one, ENDED, 0.0) for one in self.view.ended]
            victims = {**victims, **{one.job.metadata.uid: one for one in leaving}}
            self._searches += 1
            for some in self._by_preference(victims):
                targets = self._selected(requirements, some)
                if targets is not None:
                    return targets
            self._without_victims.add(_class_of(requirements))
        return self._consolidation(requirements, start_seconds)

    def lacks_only_gpus_of(self, queue: str, requirements: JobRequirements) -> bool:
        """Returns whether the job would fit on GPUs if no other job of this queue, or of one below
        it, ran.

        Jobs that could be stopped then, and jobs that leave anyway, count as gone. Returns True if
        no more searches are made in this cycle.
        """
        known = queue, _class_of(requirements)
        if known not in self._fitting_alone:
            if self.exhausted:
                return True
            self._searches += 1
            self._fitting_alone[known] = self._fits_without(queue, requirements)
        return self._fitting_alone[known]

    def _fits_without(self, name: str, requirements: JobRequirements) -> bool:
        queues = self.queues
        others = [
            job
            for job in self.view.running.values()
            if name in queues.tree.path(queues.queue_of(job))
        ]
        gone = [*others, *self.being_preempted(queues.root(name))]
        with queues.simulate_removal(others):
            leaving = self._victims(requirements)
        leaving |= {job.metadata.uid: Victim(job, ENDED, 0.0) for job in gone}
        return can_be_freed(requirements, self.assumed, leaving, self.configuration)

    def gpus_after_ends(self, requirements: JobRequirements) -> frozenset[Place] | None:
        """Returns the GPUs on which the job fits after the attempts that have ended leave them.

        Returns None if it does not fit.
        """
        if self._looks_after_ends >= self._searches_max:
            return None
        self._looks_after_ends += 1
        ended = {job.metadata.uid: Victim(job, "", 0.0) for job in self.view.ended}
        targets = select_victims(requirements, self.assumed, ended, self.configuration)
        return targets.nominated if targets is not None else None

    def gpus_after_deletions(self, requirements: JobRequirements) -> Mapping[Place, float] | None:
        """Returns the GPUs on which the job fits after pods of deleted jobs have left theirs, with
        the seconds until then.

        Returns None if it does not fit.
        """
        leaving = self.view.leaving
        if not leaving.seconds or self.exhausted:
            return None
        self._searches += 1
        capacity = after_deletions(self.assumed.capacity, leaving)
        trial = AssumedCapacity.of(capacity, self.assumed.mix)
        trial.nominate(self.assumed.nominated)
        found = assign(requirements, trial, self.configuration)
        if not isinstance(found, Assignment):
            return None
        gpus = [(place.node, gpu.uuid) for place in found.places for gpu in place.gpus]
        return {gpu: leaving.seconds.get(gpu, 0.0) for gpu in gpus}

    def _consolidation(
        self, requirements: JobRequirements, start_seconds: float
    ) -> PreemptionTargets | None:
        """Migrates other jobs closer together for this job, at the time at which its reason is
        renewed.
        """
        waited = waited_seconds(requirements.job, self.now)
        recent = written_recently(requirements.job, self.configuration, self.now)
        if recent or waited < self.configuration.consolidate_after_seconds:
            return None
        movable = {
            uid: Victim(job, MIGRATED, self._cost(job))
            for uid, job in self.view.running.items()
            if durable_checkpoint(job, self.configuration) is not None
            and self._is_free_to_interrupt(job, MIGRATED)
        }
        self._searches += 1
        targets = (
            select_victims(requirements, self.assumed, movable, self.configuration)
            if movable
            else None
        )
        if targets is None:
            return None
        # A job that has waited this long is expected to wait as long again.
        saved = min(start_seconds, waited)
        gpus = requirements.job.spec.gpus
        if not pays_off(targets, gpus, saved):
            return None
        fits = all_reschedulable(targets, self.assumed, self.view, self.configuration)
        return targets if fits else None

    def may_preempt(self, requirements: JobRequirements) -> bool:
        """Returns whether a running job could be preempted for this job.

        It is called for every pending job. Returns False if a search for victims failed in this
        cycle, for this job or another one of its class.
        """
        job = requirements.job
        if not self._is_let_in(job) or _class_of(requirements) in self._without_victims:
            return False
        lowest = self.view.lowest_priorities.get(job.spec.queue)
        if lowest is not None and job.spec.priority > self.queues.capped(lowest, job.spec.queue):
            return True
        if not self.queues.by_name:
            return False
        if not self.queues.is_owed(job.spec.queue):
            return False
        return self.queues.fits_in_nominal(
            job, least_reservation_bytes(requirements, self.assumed, self.configuration)
        )

    def _victims(self, requirements: JobRequirements) -> dict[str, Victim]:
        """Returns the jobs that may be preempted for the job, with the reason for each.

        Priority decides within a queue. Between queues only quota decides, so no queue's priorities
        outrank another's.
        """
        job = requirements.job
        memory_bytes = least_reservation_bytes(requirements, self.assumed, self.configuration)
        fits_in_nominal = self.queues.fits_in_nominal(job, memory_bytes)
        found: dict[str, Victim] = {}
        for uid, other in self.view.running.items():
            if are_replicas_of_one(job, other):
                # A rollout replaces it once this one answers.
                continue
            queue = self.queues.queue_of(other)
            if queue == job.spec.queue and self.queues.priority_of(other) < job.spec.priority:
                reason = PREEMPTED
            elif fits_in_nominal and self.queues.borrows_beside(queue, job.spec.queue):
                # Whether it may be stopped depends on the other victims.
                reason = RECLAIMED
            else:
                continue
            if self._is_free_to_interrupt(other, reason):
                found[uid] = Victim(other, reason, self._cost(other))
        return found

    def interrupt(self, requirements: JobRequirements, victims: Iterable[Victim]) -> Departures:
        """Stops the victims' attempts in this cycle.

        Returns the departures that the job waits for.
        """
        victims = list(victims)
        chosen = [victim for victim in victims if victim.reason not in (ENDED, LEAVING)]
        leaving = [victim.job for victim in victims if victim.reason == LEAVING]
        if not chosen and leaving:
            return self.awaiting(requirements.job, leaving)
        if not chosen:
            return Departures("waiting for what jobs had that have just ended", LATE_SECONDS)
        self.beneficiaries.add(requirements.job.metadata.uid)
        for victim in chosen:
            text = (
                f"stopped for {name_for(victim.job, requirements.job)} "
                f"({self._why(victim, requirements.job)}); "
                f"loses {victim.cost_gpu_seconds:.0f} GPU-seconds"
            )
            deadline = self.now + timedelta(seconds=stop_seconds(victim.job, self.configuration))
            self.stops[victim.job.metadata.uid] = StopReason(victim.reason, text, deadline)
        jobs = [victim.job for victim in chosen]
        names = names_for(requirements.job, jobs)
        text = f"waiting for {names} to stop (preempted for this job)"
        seconds = max(stop_seconds(job, self.configuration) for job in jobs)
        return Departures(text, seconds + LATE_SECONDS)

    def awaiting(self, job: GPUJob, leaving: Iterable[GPUJob]) -> Departures:
        """Returns the departures that a job waits for while these jobs are being stopped for any
        reason.
        """
        jobs = list(leaving)
        stops = [self.stops.get(one.metadata.uid, one.status.stop) for one in jobs]
        why = sorted({stop.reason if stop is not None else ENDED for stop in stops})
        ends = [until for one in jobs if (until := awaited_until(one)) is not None]
        left = [(until - self.now).total_seconds() for until in ends]
        text = f"waiting for {names_for(job, jobs)} to stop ({', '.join(why)})"
        return Departures(text, max(left, default=LATE_SECONDS))

    def _is_let_in(self, job: GPUJob) -> bool:
        return barred_seconds(job, self.now) <= 0

    def _may_be_replaced(self, job: GPUJob) -> bool:
        return may_be_replaced(job, self.queues.queue_of(job), self.queues.tree, self.now)

    def _is_free_to_interrupt(self, job: GPUJob, reason: str) -> bool:
        if job.metadata.uid in self.stops or not self._answers(job):
            return False
        if reason == RECLAIMED and self._may_be_replaced(job):
            return False
        if reason == RECLAIMED and self.configuration.preemptions_max:
            return is_at_work(job)
        return is_preemptible(job, self.configuration)

    def _answers(self, job: GPUJob) -> bool:
        """Returns whether all nodes of the job respond. Stopping a job on a dead node frees
        nothing.
        """
        placement, nodes = job.status.placement, self.assumed.capacity.nodes
        names = {worker.node for worker in placement.workers} if placement is not None else set()
        return all(name in nodes and nodes[name].node.ready for name in names)

    def _cost(self, job: GPUJob) -> float:
        uid = job.metadata.uid
        if uid not in self._costs:
            self._costs[uid] = interruption_gpu_seconds(job, self.configuration, self.now)
        return self._costs[uid]

    def being_preempted(self, root: str) -> list[GPUJob]:
        """Returns jobs of a root's queues whose attempts are being stopped, or have just ended.

        The reason for the stop does not matter. Attempts that are not expected to end are left out.
        """
        stopped = (self.view.running[uid] for uid in self.stops)
        ending = (*self._awaited(), *stopped, *self.view.ended)
        return [job for job in ending if self.queues.root(self.queues.queue_of(job)) == root]

    def _awaited(self) -> list[GPUJob]:
        """Returns jobs that are being stopped since an earlier cycle and are expected to end."""
        if self._stopping is None:
            self._stopping = [
                job for job in self.view.running.values() if is_awaited(job, self.now)
            ]
        return self._stopping

    def _why(self, victim: Victim, job: GPUJob) -> str:
        if victim.reason == PREEMPTED:
            return f"priority {job.spec.priority} over {self.queues.priority_of(victim.job)}"
        if victim.reason == RECLAIMED:
            queue = self.queues.queue_of(victim.job)
            if queue not in self.queues.by_name:
                return f"queue {queue} does not exist any more"
            return f"queue {queue} borrows quota of queue {job.spec.queue}"
        return "it fits on other GPUs"


def _class_of(requirements: JobRequirements) -> Hashable:
    """Returns the class of jobs that fit together and may stop the same jobs."""
    job = requirements.job
    return requirements.scheduling_signature, job.spec.queue, job.spec.priority
