"""`plan(snapshot, now)`: the whole decision of one cycle, a pure function.

Total and deterministic: the same snapshot and time always give the same plan, whatever the order
of the snapshot's tuples; applying a plan and planning again gives an empty plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, Summary
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_operator.decide import conditions, lifecycle, trouble
from gpujob_operator.decide.admission import Admission
from gpujob_operator.decide.board import Board
from gpujob_operator.decide.capacity import Capacity, build_capacity, holds_cards
from gpujob_operator.decide.conditions import ConditionWriter
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.lifecycle import Seen, Step
from gpujob_operator.decide.line import Pending
from gpujob_operator.decide.mix import mix_of
from gpujob_operator.decide.plan import (
    DeletePod,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.profiles import by_job, updated_profile
from gpujob_operator.decide.queueing import Queues, QueueUse, queues_of
from gpujob_operator.decide.releases import Releases
from gpujob_operator.decide.snapshot import PodView, ReceivedReport, Snapshot
from gpujob_operator.decide.summary import summarize
from gpujob_operator.decide.workload import host_requests


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Decides what to write. `now` is timezone-aware; nothing else tells the time."""
    cycle = _Cycle.of(snapshot, now)
    jobs = sorted(snapshot.jobs, key=lambda job: job.metadata.uid)
    steps = {job.metadata.uid: _advance(job, cycle) for job in jobs}
    waiting = [
        Pending(job, cycle.profiles.get(job.metadata.uid), cycle.pods.get(job.metadata.uid, ()))
        for job in jobs
        if not job.finished
        and job.status.placement is None
        and job.metadata.deletion_timestamp is None
    ]
    queues = queues_of(snapshot.queues, jobs)
    if waiting:
        _admit(waiting, steps, queues, jobs, cycle)
    items: list[PlanItem] = [
        RejectJob(job)
        for job in sorted(snapshot.invalid_jobs, key=lambda job: job.metadata.uid)
        if job.observed_generation != job.metadata.generation
    ]
    for job in jobs:
        items += _items(job, steps[job.metadata.uid], cycle)
    items += _orphans(snapshot)
    items += _queue_items(snapshot, queues.use, waiting)
    times = [step.next_seconds for step in steps.values() if step.next_seconds is not None]
    return Plan(tuple(items), min(times, default=None))


def _admit(
    waiting: list[Pending],
    steps: dict[str, Step],
    queues: Queues,
    jobs: list[GPUJob],
    cycle: "_Cycle",
) -> None:
    """Gives the waiting jobs and those that make room for them their steps."""
    mix = mix_of(jobs, cycle.profiles, cycle.capacity, cycle.configuration)
    by_uid = {job.metadata.uid: job for job in jobs}
    running = {
        uid: job if step.status is job.status else replace(job, status=step.status)
        for uid, step in steps.items()
        if holds_cards(job := by_uid[uid]) and job.metadata.deletion_timestamp is None
    }
    admission = Admission(
        board=Board.of(cycle.capacity, mix),
        queues=queues,
        releases=Releases.of(jobs, cycle.now),
        configuration=cycle.configuration,
        now=cycle.now,
        running={uid: job for uid, job in running.items() if holds_cards(job)},
        profiles=cycle.profiles,
    )
    admission.admit(waiting)
    for uid, step in admission.steps.items():
        steps[uid] = replace(step, deletes=steps[uid].deletes)
    for uid, stop in admission.interruptions.stops.items():
        steps[uid] = lifecycle.stopped_for(by_uid[uid], steps[uid], stop, cycle.now)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The snapshot, indexed once."""

    now: datetime
    configuration: Configuration
    capacity: Capacity
    pods: Mapping[str, tuple[PodView, ...]]
    reports: Mapping[str, ReceivedReport]
    profiles: Mapping[str, GPUProfile]
    nodes: frozenset[str]
    snapshot: Snapshot

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime) -> "_Cycle":
        pods: dict[str, tuple[PodView, ...]] = {}
        for pod in sorted(snapshot.pods, key=lambda p: (p.job_uid, p.attempt, p.rank, p.uid)):
            pods[pod.job_uid] = (*pods.get(pod.job_uid, ()), pod)
        requests = {job.metadata.uid: host_requests(job) for job in snapshot.jobs}
        return cls(
            now=now,
            configuration=snapshot.configuration,
            capacity=build_capacity(snapshot, now, requests),
            pods=pods,
            reports={r.job_uid: r for r in snapshot.reports if r.rank == 0},
            profiles=by_job(snapshot.jobs, snapshot.profiles),
            nodes=frozenset(node.name for node in snapshot.nodes),
            snapshot=snapshot,
        )


def _advance(job: GPUJob, cycle: _Cycle) -> Step:
    uid = job.metadata.uid
    seen = Seen(
        pods=cycle.pods.get(uid, ()),
        report=cycle.reports.get(uid),
        usage=cycle.snapshot.usage.get((uid, job.status.attempt)),
        profile=cycle.profiles.get(uid),
        trouble=trouble.find(job, cycle.capacity, cycle.configuration, cycle.now),
        lost_nodes=_lost_nodes(job, cycle),
        listening_since=cycle.snapshot.listening_since,
    )
    return lifecycle.advance(job, seen, cycle.configuration, cycle.now)


def _lost_nodes(job: GPUJob, cycle: _Cycle) -> frozenset[str]:
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    return frozenset(worker.node for worker in workers if worker.node not in cycle.nodes)


def _items(job: GPUJob, step: Step, cycle: _Cycle) -> list[PlanItem]:
    """The job's writes in order: its status, then its pods, then what was learned."""
    if job.metadata.deletion_timestamp is not None:
        return list(step.deletes)
    if step.status is job.status and job.status.phase is JobPhase.PENDING:
        return list(step.deletes)
    if job.finished and job.status.observed_generation == job.metadata.generation:
        # Nothing about it can change any more: thousands of finished jobs cost next to nothing.
        return list(step.deletes)
    items: list[PlanItem] = []
    status = _finish_status(job, step.status, cycle)
    if _worth_writing(job, status, cycle):
        items.append(WriteStatus(job, replace(status, observed_at=cycle.now), step.events))
    items += step.deletes
    items += step.creates
    known = replace(job, status=status)
    profile = updated_profile(known, cycle.profiles.get(job.metadata.uid), cycle.now)
    if profile is not None:
        items.append(SaveProfile(profile))
    return items


def _finish_status(job: GPUJob, status: GPUJobStatus, cycle: _Cycle) -> GPUJobStatus:
    """What every status has, whatever the job's phase."""
    writer = ConditionWriter(job, cycle.now)
    status = writer.set(status, conditions.ACCEPTED, True, "Valid", "the spec is valid")
    if conditions.find(status, conditions.SUCCEEDED) is None:
        status = writer.set(status, conditions.SUCCEEDED, None, "InProgress", "not finished yet")
    status = _with_reachability(status, writer, cycle)
    card = trouble.pressure(replace(job, status=status), cycle.capacity)
    if card is not None:
        message = trouble.pressure_message(card)
        status = writer.set(status, conditions.CARD_PRESSURE, True, "CardOverfull", message)
    elif conditions.find(status, conditions.CARD_PRESSURE) is not None:
        status = writer.set(status, conditions.CARD_PRESSURE, False, "Fits", "all of it fits again")
    return replace(
        status,
        observed_generation=job.metadata.generation,
        summary=summarize(job, status, cycle.capacity),
    )


def _with_reachability(
    status: GPUJobStatus, writer: ConditionWriter, cycle: _Cycle
) -> GPUJobStatus:
    if status.phase is not JobPhase.RUNNING or status.placement is None:
        return status
    message = trouble.unreachable(status.placement, cycle.capacity, cycle.configuration, cycle.now)
    if message:
        return writer.set(status, conditions.RUNNING, None, "NodeUnreachable", message)
    running = conditions.find(status, conditions.RUNNING)
    if running is not None and running.reason == "NodeUnreachable":
        return writer.set(status, conditions.RUNNING, True, "WorkersRunning", "its node is back")
    return status


def _worth_writing(job: GPUJob, status: GPUJobStatus, cycle: _Cycle) -> bool:
    """At once when something happened; at a bounded rate when only figures moved."""
    before = job.status
    if _essence(status) != _essence(before):
        return True
    if replace(status, observed_at=None) == replace(before, observed_at=None):
        return False
    if before.observed_at is None:
        return True
    pending = status.phase is JobPhase.PENDING
    interval_seconds = (
        cycle.configuration.pending_write_seconds
        if pending
        else cycle.configuration.progress_write_seconds
    )
    return (cycle.now - before.observed_at).total_seconds() >= interval_seconds


def _essence(status: GPUJobStatus) -> tuple[object, ...]:
    """The status without what moves all the time."""
    measured = status.measurement
    timed = measured is not None and measured.current is not None
    findings = tuple((c.type, c.status, c.reason, c.observed_generation) for c in status.conditions)
    still = replace(
        status,
        measurement=None,
        checkpoint=None,
        tuning_seconds=None,
        progressed_at=None,
        observed_at=None,
        explain=(),
        summary=Summary(),
        conditions=(),
    )
    return still, findings, measured is not None, timed, status.checkpoint is not None


def _orphans(snapshot: Snapshot) -> list[PlanItem]:
    """Pods whose job is gone, should the garbage collector not have seen them (I7)."""
    known = {job.metadata.uid for job in snapshot.jobs}
    known |= {job.metadata.uid for job in snapshot.invalid_jobs}
    grace = snapshot.configuration.termination_grace_seconds
    return [
        DeletePod(pod, grace, "its GPUJob is gone")
        for pod in sorted(snapshot.pods, key=lambda p: p.uid)
        if pod.job_uid not in known and pod.deletion_at is None
    ]


def _queue_items(
    snapshot: Snapshot, use: Mapping[str, QueueUse], waiting: list[Pending]
) -> list[PlanItem]:
    """Written when counts of jobs or cards changed; reserved memory alone follows with them."""
    items: list[PlanItem] = []
    for queue in sorted(snapshot.queues, key=lambda q: q.metadata.name):
        name = queue.metadata.name
        held = use.get(name, QueueUse())
        pending = sum(1 for entry in waiting if entry.job.spec.queue == name)
        status = GPUQueueStatus(
            observed_generation=queue.metadata.generation,
            pending_jobs=pending,
            running_jobs=held.jobs,
            reserved_gpus=held.gpus,
            reserved_memory_bytes=held.memory_bytes,
            conditions=queue.status.conditions,
        )
        if status != queue.status:
            items.append(WriteQueueStatus(queue, status))
    return items
