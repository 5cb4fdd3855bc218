"""`plan(snapshot, now)`: all decisions of one cycle, as a pure function.

It is total and deterministic. The same snapshot and time always give the same plan, in whatever
order the snapshot's tuples are. Applying plans and planning again converges to an empty plan if
nothing else happens. Within one queue, none of these plans stops a job that another of them placed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, Reservation
from gpujob_api.settings import Task
from gpujob_operator.decide.admission.admit import Admission
from gpujob_operator.decide.admission.edits import follow_edits
from gpujob_operator.decide.cache.jobs import JobEntry, ProfileKey
from gpujob_operator.decide.cache.quiescence import is_steady, quiet_until, still_holds
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.capacity.cluster import Capacity, with_reservation
from gpujob_operator.decide.capacity.leaving import LeavingPods, leaving_pods
from gpujob_operator.decide.capacity.sites import gpus_at, gpus_by_place, is_same_place, sites_of
from gpujob_operator.decide.lifecycle import attempt
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.pod_cleanup import orphaned_pods, pods_within_quota
from gpujob_operator.decide.lifecycle.recorded import is_overdue, seconds_to_record, until_recorded
from gpujob_operator.decide.lifecycle.settings import permitted
from gpujob_operator.decide.lifecycle.status import finish_status, needs_write
from gpujob_operator.decide.measurement.profile import (
    new_entries,
    samples_for_profile,
    with_entries,
)
from gpujob_operator.decide.measurement.reservation import is_settled
from gpujob_operator.decide.measurement.slowdown import has_gpus_alone, observed_pace
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place, holds_gpus
from gpujob_operator.decide.model.placement_record import record_of
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    NextStep,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteStatus,
)
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import with_forecast
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.requirements import CycleView
from gpujob_operator.decide.preemption.migration import find_move
from gpujob_operator.decide.preemption.use import with_others_stopped
from gpujob_operator.decide.queue.quota import QuotaState, queue_statuses

# Starting jobs and jobs with a write in flight are looked at again after this time.
REST_MAX, WRITTEN_REST_MAX = timedelta(seconds=5), timedelta(seconds=30)
# The shortest delay of a deadline of a job with a write in flight, whose write has to end first.
REST_MIN = timedelta(seconds=1)
# How many refused templates are tried again in a cycle.
TRIES_MAX = 16


def plan(snapshot: Snapshot, now: datetime, cache: SchedulerCache | None = None) -> Plan:
    """Decides what to write. `now` must be timezone-aware and is the only source of time.

    A `cache` from earlier cycles saves time and never changes a decision. The plan may omit status
    updates of jobs whose write is still in flight. Raises ValueError if the cache belongs to
    another configuration.
    """
    # 1. Bring the cache up to date with what changed since the last cycle.
    cache = cache if cache is not None else SchedulerCache.of(snapshot)
    cache.update(snapshot, now)
    cycle = _Cycle(snapshot, now, cache)
    # 2. Step the jobs that have an attempt: starts, reports, ends, retries (`lifecycle`).
    steps = cycle.steps()
    # 3. Admit pending jobs in the order of their queues, stop jobs for them, and move a job that
    #    its co-tenants slow (`admission`, `preemption`).
    queues = cache.queues(snapshot)
    placed: dict[str, int] = {}
    if cache.waiting.entries or cache.holders.slowed:
        placed = _admit(steps, queues, cycle)
    # 4. Follow edits of running jobs' queues and priorities.
    _follow_edits(steps, queues, cycle)
    # 5. Reject jobs that cannot be read.
    items: list[PlanItem] = [
        RejectJob(job)
        for job in sorted(snapshot.invalid_jobs, key=lambda job: job.metadata.uid)
        if job.observed_generation != job.metadata.generation
    ]
    # 6. Write statuses and pods. Placements come last, in decision order, because items are written
    #    in this order.
    matter = [uid for uid, step in steps.items() if cycle.matters(uid, step)]
    for uid in sorted(matter, key=lambda uid: (placed.get(uid, -1), uid)):
        written = _items(cache.entries[uid], steps[uid], cycle)
        cycle.remember(uid, steps[uid], written)
        items += written
    #    The expected starts of pending jobs go into the same statuses, or into writes of their own.
    items = _with_ranges(items, cycle)
    # 7. Delete pods without a job, expired jobs and unused profiles.
    invalid = {job.metadata.uid for job in snapshot.invalid_jobs}
    items += orphaned_pods(cache.pods_of_gone(), invalid, snapshot.configuration, now)
    items += [DeleteJob(cache.entries[uid].job) for uid in cache.expiries.due(now)]
    items += [DeleteProfile(profile) for profile in cache.expired_profiles(now)]
    # 8. Try refused templates again, and delete ended pods that a quota counts.
    items += _tries(cycle, placed)
    items += _counted_pods(cycle, placed)
    # 9. Publish the queues' figures.
    items += queue_statuses(snapshot.queues, queues, cache.waiting.entries.values(), now)
    return Plan(tuple(items), cycle.next_seconds(steps))


def _tries(cycle: "_Cycle", placed: Mapping[str, int]) -> list[TryTemplate]:
    """Returns trials for refused jobs that still wait, the one that was refused first before the
    others.
    """
    due = sorted(
        (one.until, one.job_uid)
        for one in cycle.snapshot.refused_templates
        if one.until <= cycle.now and one.job_uid not in placed
    )
    jobs = (cycle.cache.entries[uid].job for _, uid in due if uid in cycle.cache.entries)
    return [TryTemplate(job) for job in jobs if not job.spec.suspend][:TRIES_MAX]


def _counted_pods(cycle: "_Cycle", placed: Mapping[str, int]) -> list[DeletePod]:
    """Returns the ended pods that keep their own jobs from starting, by the job's UID.

    A job whose write is not done may lack the pods' outcome in its stored status.
    """
    entries = cycle.cache.entries
    blocked = {*placed, *cycle.writing}
    refused = sorted(cycle.snapshot.refused_templates, key=lambda one: one.job_uid)
    return [
        item
        for one in refused
        if one.job_uid not in blocked and (entry := entries.get(one.job_uid)) is not None
        for item in pods_within_quota(entry.job, entry.job_pods, one, cycle.configuration)
    ]


class Planner:
    """`plan` with a cache that is kept from cycle to cycle."""

    def __init__(self) -> None:
        self._cache: SchedulerCache | None = None

    def __call__(self, snapshot: Snapshot, now: datetime) -> Plan:
        # A cycle that raises may leave its cache half updated, so no cache is kept then.
        cache, self._cache = self._cache, None
        if cache is None or not cache.holds_for(snapshot):
            cache = SchedulerCache.of(snapshot)
        decided = plan(snapshot, now, cache)
        self._cache = cache
        return decided


def _with_ranges(items: list[PlanItem], cycle: "_Cycle") -> list[PlanItem]:
    """Returns the items with the new start ranges: in the status that is written, or in another.

    A job with a write in flight gets its range after that write.
    """
    snapshot, cache = cycle.snapshot, cycle.cache
    forecast = snapshot.forecast
    if forecast is None or forecast is cache.ranges_written:
        return items
    written = {
        item.job.metadata.uid: (place, item)
        for place, item in enumerate(items)
        if isinstance(item, WriteStatus)
    }
    found, is_left = list(items), False
    blocked = cycle.writing | frozenset(snapshot.backing_off)
    for uid in sorted(cache.waiting.entries):
        job = cache.entries[uid].job
        if job.status.start is None and uid not in forecast.intervals:
            continue
        status = written[uid][1].status if uid in written else job.status
        start = with_forecast(changed(job, status=status), forecast, cycle.now)
        if start == status.start:
            continue
        is_left = True
        status = changed(status, start=start)
        if uid in written:
            place, item = written[uid]
            found[place] = replace(item, status=status)
        elif uid not in blocked:
            found.append(WriteStatus(job, status))
    if not is_left:
        cache.ranges_written = forecast
    return found


def _admit(steps: dict[str, NextStep], queues: QuotaState, cycle: "_Cycle") -> dict[str, int]:
    """Decides the steps of the pending jobs and of their victims.

    Returns the positions of the placed jobs in decision order, by UID.
    """
    cache, assumed = cycle.cache, cycle.cache.assumed()
    for uid, reservation in cycle.grown.items():
        assumed.grow(cache.entries[uid].job, reservation)
        queues.grow(cache.entries[uid].job, reservation)
    admission = Admission(
        assumed=assumed,
        queues=queues,
        releases=cache.releases,
        tenancy_of=cache.tenancy_of,
        configuration=cycle.configuration,
        now=cycle.now,
        view=cycle.view(steps),
        refused_templates={one.job_uid: one for one in cycle.snapshot.refused_templates},
        perhaps_placed=frozenset(cycle.snapshot.perhaps_placed),
        lanes=cycle.snapshot.lanes,
        backing_off=frozenset(cycle.snapshot.backing_off),
    )
    admission.admit(cache.waiting.in_order(cycle.configuration, cycle.now))
    for uid, step in admission.steps.items():
        own = steps.get(uid)
        steps[uid] = replace(step, deletes=own.deletes) if own and own.deletes else step
    for uid in admission.preemptor.beneficiaries:
        stopped = with_others_stopped(cache.entries[uid].job, cycle.now)
        status = changed(steps[uid].status, others_stopped=stopped)
        steps[uid] = replace(steps[uid], status=status)
    for uid, stop in admission.preemptor.stops.items():
        step = cycle.step(uid, steps)
        steps[uid] = attempt.stopped_for(cache.entries[uid].job, step, stop, cycle.now)
    if cache.holders.slowed and not admission.preemptor.stops:
        _separate(steps, admission.assumed, cycle)
    return admission.placed


def _follow_edits(steps: dict[str, NextStep], queues: QuotaState, cycle: "_Cycle") -> None:
    """Applies the rules of admission to running jobs whose queue or priority was edited.

    They come after the pending jobs, so that pending jobs see the queues as they were when they
    waited.
    """
    for uid in cycle.cache.holders.edited(queues.is_admitted):
        before = cycle.step(uid, steps)
        job = replace(cycle.cache.entries[uid].job, status=before.status)
        after = follow_edits(job, before, queues, cycle.now)
        if after is not before:
            steps[uid] = after


def _separate(steps: dict[str, NextStep], assumed: AssumedCapacity, cycle: "_Cycle") -> None:
    """Migrates a job that slows a co-tenant too much, or that a co-tenant slows too much."""
    cache, view = cycle.cache, cycle.view(steps)
    slowed = [view.running[uid] for uid in sorted(cache.holders.slowed) if uid in view.running]
    move = find_move(slowed, view, assumed, cycle.configuration, cycle.now)
    if move is None:
        return
    uid = move.job.metadata.uid
    before = cycle.step(uid, steps)
    step = attempt.stopped_for(cache.entries[uid].job, before, move.stop, cycle.now)
    floor = max(step.status.utilization_floor_percent, move.utilization_floor_percent)
    status = changed(step.status, utilization_floor_percent=floor)
    steps[uid] = replace(step, status=status)


@dataclass(slots=True)
class _Cycle:
    """One cycle: its inputs, and the inputs of each step."""

    snapshot: Snapshot
    now: datetime
    cache: SchedulerCache
    # Jobs whose figures changed and are written later.
    held_back: set[str] = field(default_factory=set[str])
    # Profiles that this cycle saves. Only one job of a workload saves in a cycle.
    saved: set[ProfileKey] = field(default_factory=set[ProfileKey])
    # Jobs whose pods record a placement that no status has yet.
    recorded: frozenset[str] = field(init=False)
    # Jobs with a write in flight.
    writing: frozenset[str] = field(init=False)
    # Jobs that have something to save in a profile that another job saves in this cycle.
    unheard: set[str] = field(default_factory=set[str])
    # Reservations that grow in this cycle, by UID. They count immediately, so no other job gets
    # these bytes.
    grown: dict[str, Reservation] = field(default_factory=dict[str, Reservation])
    _promised_bytes: dict[Place, int] = field(default_factory=dict[Place, int])
    _inputs: dict[str, JobInputs] = field(default_factory=dict[str, JobInputs])
    # Seconds until jobs whose pods are being created are decided about again.
    _awaited_seconds: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.recorded = frozenset(self.snapshot.recorded)
        self.writing = frozenset(self.snapshot.writing)

    @property
    def configuration(self) -> Configuration:
        return self.snapshot.configuration

    @property
    def capacity(self) -> Capacity:
        return self.cache.capacity

    def steps(self) -> dict[str, NextStep]:
        """Returns the next steps, by UID, of jobs for which anything changed."""
        cache = self.cache
        found: dict[str, NextStep] = {}
        for uid in sorted(cache.steps.to_step):
            entry = cache.entries[uid]
            job = entry.job
            if not entry.held and not entry.job_pods.pods:
                if job.status.phase is JobPhase.PENDING:
                    # Only the admission pass can change a pending job without pods.
                    cache.steps.to_step.discard(uid)
                found[uid] = NextStep(job.status)
                continue
            if self._awaits_its_pod(job):
                self._awaited_seconds.append(seconds_to_record(job.status, self.now))
                continue
            step = self._next_step(uid, entry)
            if step is None:
                cache.steps.to_step.discard(uid)
            else:
                found[uid] = step
        return found

    def _awaits_its_pod(self, job: GPUJob) -> bool:
        """Returns whether the pod that records the placement is still being created.

        The answer, or a status in its place, changes the job. The wait is bounded.
        """
        placement = job.status.placement
        if job.metadata.uid not in self.recorded or placement is None:
            return False
        is_new = seconds_to_record(job.status, self.now) > 0
        return is_new and all(worker.pod_uid is None for worker in placement.workers)

    def step(self, uid: str, steps: Mapping[str, NextStep]) -> NextStep:
        """Returns the job's step of this cycle, or the last one if it still holds."""
        entry = self.cache.entries[uid]
        return steps.get(uid) or entry.step or NextStep(entry.job.status)

    def _next_step(self, uid: str, entry: JobEntry) -> NextStep | None:
        """Returns the step of a job that has pods or a reservation, or None while the last one
        holds.
        """
        inputs = self.cache.inputs(uid)
        if still_holds(entry, inputs, self.now):
            entry.inputs = inputs
            return None
        promised = self._promised_at(inputs)
        if promised:
            # The job is decided about again in the next cycle, when the GPUs show the growth
            # themselves.
            inputs = replace(inputs, promised_bytes=promised)
        else:
            self._inputs[uid] = inputs
        step = attempt.advance(entry.job, inputs, self.configuration, self.now)
        if uid in self.recorded:
            step = until_recorded(step, self.now)
        self._count_growth(uid, entry.job, step.status, inputs)
        return step

    def _promised_at(self, inputs: JobInputs) -> dict[Place, int]:
        """Returns the bytes that this cycle has already given to other jobs on this job's GPUs."""
        promised = self._promised_bytes
        if not promised:
            return {}
        return {
            place: promised[place] for place in gpus_by_place(inputs.sites) if place in promised
        }

    def _count_growth(self, uid: str, job: GPUJob, status: GPUJobStatus, inputs: JobInputs) -> None:
        held, wanted = job.status.reservation, status.reservation
        if held is None or wanted is None or wanted is held or status.placement is None:
            return
        larger = replace(
            wanted,
            memory_bytes=max(held.memory_bytes, wanted.memory_bytes),
            utilization_percent=max(held.utilization_percent, wanted.utilization_percent),
        )
        amounts = larger.memory_bytes, larger.utilization_percent
        if amounts == (held.memory_bytes, held.utilization_percent):
            return
        self.grown[uid] = larger
        for place, gpu in gpus_by_place(inputs.sites).items():
            more_bytes = gpu.free_bytes - with_reservation(gpu, uid, larger).free_bytes
            before_bytes = self._promised_bytes.get(place, 0)
            self._promised_bytes[place] = before_bytes + more_bytes

    def inputs_after(self, uid: str, status: GPUJobStatus) -> JobInputs:
        """Returns the inputs of a job that has this status after its step."""
        inputs = self._inputs.get(uid) or self.cache.inputs(uid)
        if is_same_place(status.placement, self.cache.entries[uid].job.status.placement):
            return inputs
        return replace(inputs, sites=sites_of(status.placement, self.capacity))

    def matters(self, uid: str, step: NextStep) -> bool:
        """Returns whether the job may need a write."""
        job = self.cache.entries[uid].job
        waits = job.status.phase is JobPhase.PENDING and step.status is job.status
        return not waits or bool(step.deletes)

    def remember(self, uid: str, step: NextStep, written: list[PlanItem]) -> None:
        """Settles a job whose step wrote nothing, until its inputs change or its deadline comes.

        A job with a write in flight also rests, because what its step wrote waits for the end of
        that write.
        """
        cache, entry, inputs = self.cache, self.cache.entries[uid], self._inputs.get(uid)
        heard = not written and uid not in self.unheard
        after = step.next_seconds
        next_at = None if after is None else self.now + timedelta(seconds=after)
        if heard and inputs is not None and is_steady(entry.job, inputs.sites):
            until = quiet_until(
                entry.job, next_at, self.configuration, held_back=uid in self.held_back
            )
            if entry.job.status.phase is JobPhase.STARTING:
                until = min(until, self.now + REST_MAX)
            cache.steps.settle(entry, step, inputs, until, next_at)
            return
        if uid in self.writing and inputs is not None and uid not in self.grown:
            soon = self.now + WRITTEN_REST_MAX
            until = soon if next_at is None else min(soon, max(next_at, self.now + REST_MIN))
            cache.steps.rest_while_written(entry, step, inputs, until)
            return
        cache.steps.requeue(entry)
        job = entry.job
        leaves = job.metadata.deletion_timestamp is not None
        ended = job.finished and not entry.held and not entry.job_pods.pods
        if not written and (leaves or ended):
            cache.steps.to_step.discard(uid)

    def view(self, steps: Mapping[str, NextStep]) -> CycleView:
        """Returns all jobs as they are after these steps."""
        cache, holders = self.cache, self.cache.holders
        return CycleView(
            requirements_of=cache.requirements,
            find_running=lambda: self._running(steps),
            find_ended=lambda: self._ended(steps),
            find_leaving=self._leaving,
            lowest_priorities=holders.lowest_priorities,
            preemption_in_flight=holders.preemption_in_flight,
        )

    def _running(self, steps: Mapping[str, NextStep]) -> dict[str, GPUJob]:
        """Returns the jobs with a reservation, as they are after their step."""
        found: dict[str, GPUJob] = {}
        for uid in self.cache.holders.jobs:
            job = self.cache.entries[uid].job
            if job.metadata.deletion_timestamp is not None:
                continue
            status = self.step(uid, steps).status
            job = job if status is job.status else replace(job, status=status)
            if holds_gpus(job):
                found[uid] = job
        return found

    def _leaving(self) -> LeavingPods:
        """Returns the pods of deleted jobs that end within their grace."""
        entries = self.cache.entries.values()
        deleted = (one for one in entries if one.job.metadata.deletion_timestamp is not None)
        pods = [*self.cache.pods_of_gone(), *(pod for one in deleted for pod in one.job_pods.pods)]
        return leaving_pods(pods, self.now, self.configuration.termination_grace_seconds_max)

    def _ended(self, steps: Mapping[str, NextStep]) -> list[GPUJob]:
        """Returns the jobs whose reservation this cycle's steps release."""
        jobs = self.cache.holders.jobs
        return [
            jobs[uid]
            for uid, step in steps.items()
            if uid in jobs and (step.status.placement is None or step.status.finished)
        ]

    def next_seconds(self, steps: Mapping[str, NextStep]) -> float | None:
        """Returns the seconds until the first deadline of any job, or None."""
        found = [step.next_seconds for step in steps.values() if step.next_seconds is not None]
        others = (self.cache.steps.next_at.first, self.cache.expiries.next_at)
        found += self._awaited_seconds
        found += [(first - self.now).total_seconds() for first in others if first is not None]
        return min(found, default=None)


def _measures_its_workload(entry: JobEntry, status: GPUJobStatus) -> bool:
    """Returns False while an attempt runs with settings that an edit of the spec has since
    forbidden.

    The attempt's settings belong to its own workload if the status names that workload's profile.
    """
    if status.profile not in (None, entry.spec_keys.profile[1]):
        return True
    return permitted(status.tuned, entry.job.spec.optimize) is status.tuned


def _recording_pod(
    entry: JobEntry, status: GPUJobStatus, inputs: JobInputs, cycle: _Cycle
) -> CreatePod | None:
    """Returns the pod that records the first placement of a one-worker job, or None.

    The job's status does not have to be written before such a pod is created.
    """
    job = entry.job
    is_first = job.status.placement is None and status.placement is not None
    if not is_first or status.attempt > 1 or job.spec.workers > 1 or entry.job_pods.pods:
        return None
    placed = replace(job, status=status)
    creates = attempt.advance(placed, inputs, cycle.configuration, cycle.now).creates
    return replace(creates[0], record=record_of(placed)) if creates else None


def _items(entry: JobEntry, step: NextStep, cycle: _Cycle) -> list[PlanItem]:
    """Returns the job's writes in order: its status, its pods, its profile."""
    job = entry.job
    if job.metadata.deletion_timestamp is not None:
        return list(step.deletes)
    if step.status is job.status and job.status.phase is JobPhase.PENDING:
        return list(step.deletes)
    if job.finished and job.status.observed_generation == job.metadata.generation:
        # Nothing can change any more. This keeps thousands of finished jobs cheap.
        return list(step.deletes)
    items: list[PlanItem] = []
    inputs = cycle.inputs_after(job.metadata.uid, step.status)
    status = finish_status(job, step.status, inputs, cycle.configuration, cycle.now)
    overdue = job.metadata.uid in cycle.recorded and is_overdue(job.status, cycle.now)
    if overdue or needs_write(job, status, cycle.configuration, cycle.now):
        status = changed(status, observed_at=cycle.now)
        pod = _recording_pod(entry, status, inputs, cycle)
        items.append(WriteStatus(job, status, step.events, pod))
    elif status is not job.status and status != job.status:
        cycle.held_back.add(job.metadata.uid)
    items += step.deletes
    items += step.creates
    if status.placement is None or not _measures_its_workload(entry, status):
        return items
    gpus = gpus_at(inputs.sites)
    alone = has_gpus_alone(status, gpus)
    # A training that yields executes less beside the others than it would otherwise.
    known_pace = not alone and inputs.yielding is None
    pace = observed_pace(status, entry.profile, gpus) if known_pace else None
    serves = (
        job.spec.optimize.task is Task.SERVING
        and status.phase is JobPhase.RUNNING
        and status.measurement is not None
        and is_settled(status.measurement, cycle.configuration)
    )
    samples = samples_for_profile(inputs.usage) if inputs.usage is not None else None
    entries = new_entries(
        status,
        entry.profile,
        cycle.now,
        alone=alone,
        serves=serves,
        pace=pace,
        samples=samples,
    )
    if entries is None:
        return items
    if entry.profile_key in cycle.saved:
        cycle.unheard.add(job.metadata.uid)
        return items
    cycle.saved.add(entry.profile_key)
    items.append(SaveProfile(with_entries(job, entry.profile, entries)))
    return items
