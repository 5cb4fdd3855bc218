"""The admission pass over the pending jobs.

* In: the pending jobs of all queues in order, free capacity, quotas, and the running jobs.
* Decides: which jobs are placed, which jobs are stopped for them, and why the others wait.
* Out: the next steps of the pending jobs (`steps`) and the victims (`preemptor.stops`).
* Called by: `planner`, once a cycle, after the jobs that have an attempt were stepped.

Jobs come in the order of `queue.heads`. The pass first checks whether capacity for a job that does
not fit will be free soon. Otherwise the job may preempt (`preemption`). After a long wait GPUs are
nominated for it (`backfill.nomination`). Only jobs that are expected to finish in time may still
use these.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.admission.budget import CycleBudget, Refused, RefusedClasses, State
from gpujob_operator.decide.admission.pending_status import (
    PendingStatusWriter,
    Wait,
    not_eligible,
    placed,
)
from gpujob_operator.decide.backfill.nomination import (
    READING_SECONDS,
    Nomination,
    Nominations,
)
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.lifecycle.start_advice import with_advice
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.configuration import Configuration, NodeAutoscaler
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.lanes import Lanes
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.snapshot import RefusedTemplate
from gpujob_operator.decide.model.spec_refusals import spec_refusal
from gpujob_operator.decide.model.waiting_time import waited_seconds
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.diagnosis import Diagnosis
from gpujob_operator.decide.placement.gpu_filter import (
    least_reservation_bytes,
    reservations_bytes,
)
from gpujob_operator.decide.placement.requirements import CycleView, JobRequirements
from gpujob_operator.decide.preemption.preemptor import Departures, Preemptor
from gpujob_operator.decide.queue.heads import QueueHeads
from gpujob_operator.decide.queue.pending import (
    Keyed,
    OrderedQueues,
    Pending,
)
from gpujob_operator.decide.queue.quota import QuotaState

# A job that has waited this many times `preemption_wait_seconds` stops others although they are
# expected to end within that time.
BELIEVED_WAITS = 10
# Karpenter puts one of these labels on every node that it adds.
_KARPENTER_LABELS = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")


@dataclass(slots=True)
class Admission:
    """One pass. `steps` has the next steps of the pending jobs, and `preemptor.stops` has the
    victims.
    """

    assumed: AssumedCapacity
    queues: QuotaState
    releases: ReleaseTimes
    tenancy_of: Callable[[Capacity], Tenancy]
    configuration: Configuration
    now: datetime
    view: CycleView
    # By job UID.
    refused_templates: Mapping[str, RefusedTemplate] = field(
        default_factory=dict[str, RefusedTemplate]
    )
    # UIDs of jobs that another process may have placed unseen.
    perhaps_placed: frozenset[str] = frozenset()
    # How many more jobs can be written.
    lanes: Lanes = field(default_factory=Lanes)
    # UIDs of jobs of which nothing is written now. They count towards no bound of the pass.
    backing_off: frozenset[str] = frozenset()
    # UIDs of the placed jobs, with their position in the order.
    placed: dict[str, int] = field(default_factory=dict[str, int])
    steps: dict[str, NextStep] = field(default_factory=dict[str, NextStep])
    preemptor: Preemptor = field(init=False)
    _status: PendingStatusWriter = field(init=False)
    _budget: CycleBudget = field(init=False)
    _nominations: Nominations = field(init=False)
    _refused: RefusedClasses = field(default_factory=RefusedClasses)
    _held: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    # Requirements of jobs whose queue bounds GPU memory, by UID.
    _on_models_of: dict[str, JobRequirements] = field(default_factory=dict[str, JobRequirements])
    _position: int = 0
    _lines: OrderedQueues = field(default_factory=dict[str, Sequence[Keyed]])

    def __post_init__(self) -> None:
        self._budget = CycleBudget(self.lanes, self.backing_off)
        self._nominations = Nominations(
            self.assumed, self.releases, self.tenancy_of, self.configuration
        )
        self.preemptor = Preemptor(
            assumed=self.assumed,
            queues=self.queues,
            configuration=self.configuration,
            now=self.now,
            view=self.view,
        )
        self._status = PendingStatusWriter(self.configuration, self.now)

    def admit(self, lines: OrderedQueues) -> None:
        """Decides about the pending jobs in order. All workers of a job are placed or none (I11).

        1. Take the next head of the queues, until a cycle's limit of placements is reached.
        2. Skip a job if nothing of it could be written now.
        3. Skip a job that already shows why its class is refused in this state.
        4. Decide: not eligible, refused by the API server, placed, or without capacity (`_step`).
        5. Forget the refusals of classes if the state has changed: a job was placed, GPUs were
           nominated or a job is being stopped.
        """
        self._lines = lines
        self.queues.note_ended(self.view.ended)
        size = self.assumed.capacity.size
        line = QueueHeads(lines, self.queues, size, self._memory_bytes, self._is_starved)
        self._refused.forget_others(self._state())
        for entry in line:
            if not self._budget.may_place:
                return
            if not self._budget.may_decide(entry.job):
                self._position += 1
                continue
            refused = self._refused.get(entry.equivalence_class)
            if refused is not None and self._is_still_refused(entry, refused):
                self._position += 1
                continue
            step = self.steps[entry.job.metadata.uid] = self._step(entry)
            if entry.job.metadata.uid in self.placed:
                self._budget.count_placed(entry.job)
            elif step.status is not entry.job.status:
                self._budget.count_explained(entry.job)
            self._refused.forget_others(self._state())

    def _is_still_refused(self, entry: Pending, refused: Refused) -> bool:
        """Returns whether the refusal of an equivalent job in this same state can stand for this
        job.

        It can if the job already shows the reason, or shows it in a later cycle because this
        cycle's limit is reached. Such a job is skipped, so thousands of pending jobs cost next to
        nothing.
        """
        last_reason, now = entry.last_reason, self.now
        is_shown = (
            last_reason is not None
            and now < last_reason.until
            and refused.reason == last_reason.reason
        )
        if not is_shown and self._budget.may_explain:
            return False
        starved = now >= last_reason.starved_at if last_reason else self._is_starved(entry.job)
        if starved and not self._starvation_is_idle(entry.job, refused.reason):
            return False
        return refused.by_backfill or not self.assumed.may_backfill(
            self.releases.expected_run_seconds(entry.job)
        )

    def _starvation_is_idle(self, job: GPUJob, reason: PendingReason) -> bool:
        """Returns whether nothing more can be nominated for the job, however long it has waited."""
        if reason is PendingReason.OVER_QUOTA:
            return bool(self.queues.held_for_another(job, 0))
        return self._nominations.are_exhausted

    def _state(self) -> State:
        """Returns the state that a refusal depends on."""
        quota = self.queues.version if self.queues.by_name else 0
        return (
            quota,
            len(self.queues.quota_held) + len(self.queues.shared_held),
            len(self.assumed.nominated),
            len(self.preemptor.stops),
        )

    def _remember_refusal(self, entry: Pending, requirements: JobRequirements, wait: Wait) -> None:
        """Remembers that the class was refused, if nothing can be done for its other jobs
        either.
        """
        if not entry.equivalence_class or wait.reason not in (
            PendingReason.INSUFFICIENT_CAPACITY,
            PendingReason.OVER_QUOTA,
        ):
            return
        if entry.job.status.others_stopped is not None:
            # Other jobs of the class may still preempt.
            return
        quota = wait.reason is PendingReason.OVER_QUOTA
        spent = self.preemptor.exhausted if quota else self._nominations.are_exhausted
        preemption_in_flight = self.view.preemption_in_flight
        if not spent and (preemption_in_flight or self.preemptor.may_preempt(requirements)):
            return
        if quota and self.preemptor.being_preempted(self.queues.root(requirements.job.spec.queue)):
            return
        by_backfill = not self.assumed.nominated or self.assumed.refuses_backfill(
            requirements.scheduling_signature
        )
        refused = Refused(wait.reason, self._state(), by_backfill)
        self._refused.remember(entry.equivalence_class, refused)

    def _step(self, entry: Pending) -> NextStep:
        wait = not_eligible(entry, self.queues, self.now)
        if wait is None and (text := spec_refusal(entry.job, self.configuration)):
            wait = Wait(PendingReason.SPEC_REJECTED, text)
        refused = self._template_refusal(entry.job)
        if wait is None and refused is not None and refused.next_seconds:
            wait = refused
        if wait is not None:
            return self._status.step(entry.job, wait, self)
        requirements = self._requirements_of(entry.job)
        found = self._place(requirements)
        if isinstance(found, Assignment):
            found.assume(self.assumed)
            step = placed(entry.job, found, self.now, self._next_attempt(entry.job))
            self.queues.add(entry.job, step.status)
            self.placed[entry.job.metadata.uid] = len(self.placed)
            return step
        if refused is not None:
            # Nothing is preempted or nominated for pods that may be refused again.
            return self._status.step(entry.job, refused, self)
        self._position += 1
        before = self._state()
        wait = self._without_capacity(requirements, found)
        if self._state() == before:
            # Else what is held for this job may be what the next one of its class lacks.
            self._remember_refusal(entry, requirements, wait)
        return self._status.step(entry.job, wait, self)

    def _next_attempt(self, job: GPUJob) -> int:
        """Returns the number of the next attempt.

        The first number is skipped if another process may have given it to a pod that came and went
        unseen (I3).
        """
        unseen = job.status.attempt == 0 and job.metadata.uid in self.perhaps_placed
        return job.status.attempt + (2 if unseen else 1)

    def _template_refusal(self, job: GPUJob) -> Wait | None:
        """Returns why a job waits whose pods a dry run refused, or None.

        `next_seconds` is None once the dry run may be repeated.
        """
        refused = self.refused_templates.get(job.metadata.uid)
        if refused is None:
            return None
        message = refused.message
        if refused.reason is PendingReason.POD_REJECTED:
            message = with_advice(f"the API server refuses the job's pods: {message}")
        left = max((refused.until - self.now).total_seconds(), 0.0)
        return Wait(refused.reason, message, next_seconds=left or None)

    def _place(self, requirements: JobRequirements) -> Assignment | Wait:
        """Returns the job's placement within its quota, or why it waits."""
        found = self._placed_on(requirements)
        if isinstance(found, Assignment):
            return found
        if found.fits:
            # A model that it likes less may be within the quota.
            other = self._on_models(requirements, self._is_within_quota)
            placed_on = self._placed_on(other) if other is not requirements else found
            return placed_on if isinstance(placed_on, Assignment) else found
        models = requirements.models_within_quota
        if models is None:
            return found
        note = f"; queue {requirements.job.spec.queue} has quota for {', '.join(models)} only"
        return replace(found, note=note)

    def _placed_on(self, requirements: JobRequirements) -> Assignment | Wait:
        length = (
            self.releases.expected_run_seconds(requirements.job) if self.assumed.nominated else inf
        )
        found = assign(requirements, self.assumed, self.configuration, length)
        if isinstance(found, Diagnosis) and not found.could_ever_fit:
            may_come = _nodes_may_come(self.assumed, self.configuration)
            reason = PendingReason.NEEDS_NEW_NODE if may_come else PendingReason.UNSATISFIABLE
            return Wait(reason, found)
        if self.queues.by_name:
            fits = isinstance(found, Assignment)
            held = (
                found.reservation.memory_bytes
                if fits
                else self._least_reservation_bytes(requirements)
            )
            over = self.queues.quota_shortfall(requirements.job, held)
            if over:
                return Wait(PendingReason.OVER_QUOTA, over, memory_bytes=held, fits=fits)
        return (
            found
            if isinstance(found, Assignment)
            else Wait(PendingReason.INSUFFICIENT_CAPACITY, found)
        )

    # -- a job that does not fit now

    def _without_capacity(self, requirements: JobRequirements, wait: Wait) -> Wait:
        """Preempts or nominates for a job that does not fit. Returns the reason to write."""
        nomination = None
        making = None
        if wait.reason is PendingReason.OVER_QUOTA:
            making = self._capacity_in_quota(requirements, wait)
        elif wait.reason is PendingReason.INSUFFICIENT_CAPACITY and self._fits_after_ends(
            requirements
        ):
            self._claim(requirements, self.view.ended)
        elif wait.reason is PendingReason.INSUFFICIENT_CAPACITY:
            nomination = self._earliest_start(requirements)
            making = (
                self._capacity_on_gpus(requirements, nomination) if nomination is not None else None
            )
        if making is not None:
            # Victims that have not left by then are no longer waited for.
            wait = replace(
                wait,
                reason=PendingReason.PREEMPTING,
                text=making.text,
                next_seconds=max(making.seconds, 1.0),
            )
        return changed(wait, position=self._position, nomination=nomination)

    def _capacity_in_quota(self, requirements: JobRequirements, wait: Wait) -> Departures | None:
        """Preempts jobs whose quota this job may reclaim. Returns the departures that the job waits
        for.
        """
        job, queues = requirements.job, self.queues
        if queues.held_for_another(job, wait.memory_bytes):
            return None
        leaving = self._leaving_quota_of(job, wait.memory_bytes)
        with queues.simulate_removal(leaving):
            enough = not queues.quota_shortfall(job, wait.memory_bytes)
            targets = (
                None
                if enough
                else self.preemptor.targets_in_quota(
                    requirements, wait.memory_bytes, fits=wait.fits
                )
            )
        victims = targets.victims if targets is not None else ()
        if not enough and not victims:
            if self._is_starved(job):
                self._keep_turn(requirements, wait)
            return None
        stopped = [*leaving, *(victim.job for victim in victims)]
        queues.claim(job, wait.memory_bytes, stopped)
        seconds = self._stop_seconds(stopped)
        if targets is not None and targets.nominated:
            self.assumed.nominate(targets.nominated, seconds)
        elif not self._fits_after_ends(requirements):
            nomination = self._earliest_start(requirements)
            if nomination is not None and nomination.start_seconds <= seconds:
                self._nominations.hold(nomination)
        if enough:
            return self.preemptor.awaiting(job, leaving)
        return self.preemptor.interrupt(requirements, victims)

    def _keep_turn(self, requirements: JobRequirements, wait: Wait) -> None:
        """Lets no later job overtake a starved one in what it lacks.

        That is the quota of its queue if it lacks only what jobs of its queue hold, and else the
        quota above that, if its queue has the same right to it as those that hold it. Nothing is
        held for a job that would then lack GPUs.
        """
        job, queues, memory_bytes = requirements.job, self.queues, wait.memory_bytes
        if not queues.is_kept_out_by_others(job, memory_bytes):
            if wait.fits or self.preemptor.lacks_only_gpus_of(job.spec.queue, requirements):
                queues.hold_quota(job)
        elif queues.has_equal_right(job, memory_bytes, borrows=True):
            lacking = queues.lacking(job, memory_bytes)
            top = lacking[-1][0] if lacking else job.spec.queue
            if wait.fits or self.preemptor.lacks_only_gpus_of(top, requirements):
                queues.hold_shared_quota(lacking)

    def _leaving_quota_of(self, job: GPUJob, memory_bytes: int) -> list[GPUJob]:
        """Returns jobs that are being stopped and will return quota that this job lacks."""
        full = self.queues.too_full(job, memory_bytes)
        root = self.queues.root(job.spec.queue)
        return [
            other
            for other in self.preemptor.being_preempted(root)
            if not full.isdisjoint(self.queues.tree.path(self.queues.queue_of(other)))
        ]

    def _claim(self, requirements: JobRequirements, stopped: Iterable[GPUJob]) -> None:
        """Holds the quota of a job for which others leave their GPUs."""
        if self.queues.by_name:
            held_bytes = self._least_reservation_bytes(requirements)
            self.queues.claim(requirements.job, held_bytes, stopped)

    def _capacity_on_gpus(
        self, requirements: JobRequirements, nomination: Nomination
    ) -> Departures | None:
        """Preempts for the job if it may, or nominates GPUs. Returns the departures that it waits
        for.
        """
        jobs = [self.releases.jobs[uid] for uid in nomination.being_preempted]
        if jobs and nomination.start_seconds <= self._stop_seconds(jobs):
            self._nominations.hold(nomination)
            self._claim(requirements, jobs)
            return self.preemptor.awaiting(requirements.job, jobs)
        if not self._comes_by_itself(requirements.job, nomination):
            deleted = self._capacity_after_deletions(requirements)
            if deleted is not None:
                return deleted
            targets = self.preemptor.targets_on_gpus(requirements, nomination.start_seconds)
            if targets is not None:
                self._claim(requirements, [victim.job for victim in targets.victims])
                self.assumed.nominate(
                    targets.nominated, self._stop_seconds(v.job for v in targets.victims)
                )
                return self.preemptor.interrupt(requirements, targets.victims)
        if self._is_starved(requirements.job):
            self._nominations.keep(nomination)
        return None

    def _capacity_after_deletions(self, requirements: JobRequirements) -> Departures | None:
        """Waits for the pods of deleted jobs, if the job fits then and others could be stopped for
        it.
        """
        if not self.preemptor.may_preempt(requirements):
            return None
        gpus = self.preemptor.gpus_after_deletions(requirements)
        if gpus is None:
            return None
        seconds = max(gpus.values())
        self._claim(requirements, ())
        self.assumed.nominate(gpus, seconds)
        return Departures("waiting for pods of deleted jobs to end", seconds)

    def _comes_by_itself(self, job: GPUJob, nomination: Nomination) -> bool:
        """Returns whether the job can start soon without stopping others.

        Jobs that are always about to end, by what they report, are not believed for long.
        """
        wait_seconds = self.configuration.preemption_wait_seconds
        if nomination.start_seconds > wait_seconds:
            return False
        is_late = waited_seconds(job, self.now) > BELIEVED_WAITS * wait_seconds
        return not (nomination.is_estimated and is_late)

    def _fits_after_ends(self, requirements: JobRequirements) -> bool:
        """Returns whether the job will fit in the next cycle, on GPUs of attempts that have just
        ended.

        If so, these GPUs are kept from jobs that this job would otherwise stop in the next cycle.
        """
        if not self.view.ended or not self._outranks_others(requirements):
            return False
        gpus = self.preemptor.gpus_after_ends(requirements)
        if gpus is None:
            return False
        self.assumed.nominate(gpus, READING_SECONDS)
        return True

    def _outranks_others(self, requirements: JobRequirements) -> bool:
        """Returns whether other pending jobs could be stopped for this one once they are placed."""
        job, queues = requirements.job, self.queues
        queue = self._lines.get(job.spec.queue)
        # A smaller key is a higher priority.
        if queue and queue[-1].key.priority > -job.spec.priority:
            return True
        if not queues.by_name or len(self._lines) == 1:
            return False
        return queues.fits_in_nominal(job, self._least_reservation_bytes(requirements))

    def _stop_seconds(self, jobs: Iterable[GPUJob]) -> float:
        """Returns the seconds until the last of these jobs is stopped."""
        return max((stop_seconds(job, self.configuration) for job in jobs), default=0.0)

    def _earliest_start(self, requirements: JobRequirements) -> Nomination | None:
        """Returns the earliest start, computed only if the result can be used.

        Jobs that only wait never use up the searches of those that may stop others.
        """
        may_preempt = self.preemptor.may_preempt(requirements) and not self.preemptor.exhausted
        if may_preempt or self._awaits_victims(requirements.job):
            return self._nominations.of(requirements)
        acts = self._is_starved(requirements.job) or self.view.preemption_in_flight
        return self._nominations.next(requirements) if acts else None

    def _awaits_victims(self, job: GPUJob) -> bool:
        """Returns whether others are being, or were, stopped for the job."""
        if not self.view.preemption_in_flight:
            return False
        shown = find(job.status, SCHEDULED)
        return shown is not None and shown.reason == PendingReason.PREEMPTING

    def signature_of(self, job: GPUJob) -> Hashable:
        return self._requirements_of(job).scheduling_signature

    def nominate(self, job: GPUJob) -> Nomination | None:
        return self._nominations.of(self._requirements_of(job))

    # -- the job's status

    def _requirements_of(self, job: GPUJob) -> JobRequirements:
        found = self.view.requirements_of(job.metadata.uid).at(self.now)
        most_bytes = self.queues.memory_limit_bytes(job.spec.queue)
        if most_bytes is None:
            return found
        uid = job.metadata.uid
        if uid not in self._on_models_of:
            gpus = job.spec.gpus
            self._on_models_of[uid] = self._on_models(
                found, lambda _, each_bytes: gpus * each_bytes <= most_bytes
            )
        return self._on_models_of[uid]

    def _on_models(
        self, requirements: JobRequirements, has_quota: Callable[[GPUJob, int], bool]
    ) -> JobRequirements:
        """Returns the requirements for those models only on which the reservation has quota.

        Returns the same object if none has quota, or all have.
        """
        held = reservations_bytes(requirements, self.assumed.capacity, self.configuration)
        models = tuple(
            model for model, each_bytes in held.items() if has_quota(requirements.job, each_bytes)
        )
        if not models or len(models) == len(held):
            return requirements
        return replace(requirements, models_within_quota=models)

    def _is_within_quota(self, job: GPUJob, each_bytes: int) -> bool:
        return not self.queues.quota_shortfall(job, each_bytes)

    def _memory_bytes(self, entry: Pending) -> int:
        return (
            self._least_reservation_bytes(self._requirements_of(entry.job))
            if self.queues.by_name
            else 0
        )

    def _least_reservation_bytes(self, requirements: JobRequirements) -> int:
        if requirements.scheduling_signature not in self._held:
            self._held[requirements.scheduling_signature] = least_reservation_bytes(
                requirements, self.assumed, self.configuration
            )
        return self._held[requirements.scheduling_signature]

    def _is_starved(self, job: GPUJob) -> bool:
        return waited_seconds(job, self.now) >= self.configuration.nominate_after_seconds


def _nodes_may_come(assumed: AssumedCapacity, configuration: Configuration) -> bool:
    """Returns whether an autoscaler may add nodes, as configured or else by the labels of the
    nodes.
    """

    def find() -> bool:
        nodes = assumed.capacity.nodes.values()
        return any(label in node.node.labels for node in nodes for label in _KARPENTER_LABELS)

    if configuration.node_autoscaler is not NodeAutoscaler.AUTO:
        return configuration.node_autoscaler is NodeAutoscaler.PRESENT
    return assumed.memo.once(("nodes may come",), find)
