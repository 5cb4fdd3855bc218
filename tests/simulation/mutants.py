"""Planners that break one promise each, to show that the checks can fail."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import (
    GPUJob,
    GPUJobStatus,
    JobPhase,
    Sharing,
)
from gpujob_api.gpunode import GPU, GPUNode
from gpujob_api.report import CheckpointReport
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.plan import DeletePod, Plan, PlanItem, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan

AGAIN = timedelta(seconds=20)
PlanFunction = Callable[[Snapshot, datetime], Plan]


def _changed(
    snapshot: Snapshot, now: datetime, change: Callable[[GPUJob, GPUJobStatus], GPUJobStatus]
) -> Plan:
    """The real plan with the statuses that it writes changed."""
    decided = plan(snapshot, now)
    items: list[PlanItem] = [
        replace(item, status=change(item.job, item.status))
        if isinstance(item, WriteStatus)
        else item
        for item in decided.items
    ]
    return replace(decided, items=tuple(items))


def places_all_on_one_gpu(snapshot: Snapshot, now: datetime) -> Plan:
    """I1: every single worker goes to the same GPU."""

    def change(job: GPUJob, status: GPUJobStatus) -> GPUJobStatus:
        if status.placement is None or job.status.placement is not None:
            return status
        first = min(node.metadata.name for node in snapshot.gpu_nodes)
        node = next(one for one in snapshot.gpu_nodes if one.metadata.name == first)
        workers = tuple(
            replace(worker, node=first, gpus=(node.status.gpus[0].uuid,))
            for worker in status.placement.workers
        )
        return replace(status, placement=replace(status.placement, workers=workers))

    return _changed(snapshot, now, change)


def _unused(snapshot: Snapshot) -> Snapshot:
    """Every GPU as if nothing ran on it."""

    def blind(node: GPUNode) -> GPUNode:
        gpus = tuple(replace(gpu, processes=(), memory_used_bytes=0) for gpu in node.status.gpus)
        return replace(node, status=replace(node.status, gpus=gpus))

    return replace(snapshot, gpu_nodes=tuple(map(blind, snapshot.gpu_nodes)))


def ignores_unmanaged_processes(snapshot: Snapshot, now: datetime) -> Plan:
    """I1: memory that no job of ours uses looks free."""
    return plan(_unused(snapshot), now)


def ignores_the_driver(snapshot: Snapshot, now: datetime) -> Plan:
    """I1: what the driver keeps looks free."""

    def blind(node: GPUNode) -> GPUNode:
        gpus = tuple(replace(gpu, memory_reserved_bytes=0) for gpu in node.status.gpus)
        return replace(node, status=replace(node.status, gpus=gpus))

    return plan(replace(snapshot, gpu_nodes=tuple(map(blind, snapshot.gpu_nodes))), now)


def forgets_jobs_that_are_stopping(snapshot: Snapshot, now: datetime) -> Plan:
    """I1: their GPUs are given away while their pods still end."""
    gone = {job.metadata.uid for job in snapshot.jobs if job.status.phase is JobPhase.STOPPING}
    jobs = tuple(job for job in snapshot.jobs if job.metadata.uid not in gone)
    pods = tuple(pod for pod in snapshot.pods if pod.job_uid not in gone)
    blind = plan(replace(_unused(snapshot), jobs=jobs, pods=pods), now)
    given = {
        item.job.metadata.uid: item
        for item in blind.items
        if isinstance(item, WriteStatus) and item.status.phase is JobPhase.STARTING
    }
    decided = plan(snapshot, now)
    others = tuple(
        item
        for item in decided.items
        if not (isinstance(item, WriteStatus) and item.job.metadata.uid in given)
    )
    return replace(decided, items=(*others, *given.values()))


def _within_reservations(snapshot: Snapshot) -> Snapshot:
    """Every job as if it were seen to use no more than it reserves."""
    held = {
        job.metadata.uid: job.status.reservation.memory_bytes
        for job in snapshot.jobs
        if job.status.reservation is not None
    }
    most = {pod.uid: held[pod.job_uid] for pod in snapshot.pods if pod.job_uid in held}

    def within(gpu: GPU) -> GPU:
        processes = tuple(
            replace(one, memory_bytes=min(one.memory_bytes, most[one.pod_uid]))
            if one.pod_uid in most
            else one
            for one in gpu.processes
        )
        before, after = (sum(p.memory_bytes for p in of) for of in (gpu.processes, processes))
        used = gpu.memory_used_bytes - (before - after)
        return replace(gpu, processes=processes, memory_used_bytes=used)

    nodes = tuple(
        replace(node, status=replace(node.status, gpus=tuple(map(within, node.status.gpus))))
        for node in snapshot.gpu_nodes
    )
    return replace(snapshot, gpu_nodes=nodes, usage={})


def gives_away_what_jobs_grow_by(snapshot: Snapshot, now: datetime) -> Plan:
    """I1: jobs grow to what was seen of them, and others are placed as if they did not.

    In none of the seeds of the other mutants does a job grow: see `test_growth_beside_placements`.
    """

    def change(job: GPUJob, status: GPUJobStatus) -> GPUJobStatus:
        before, after = job.status.reservation, status.reservation
        usage = snapshot.usage.get((job.metadata.uid, job.status.attempt))
        if before is None or after is None or usage is None:
            return status
        most_bytes = max(before.memory_bytes, usage.memory_peak_bytes)
        held = replace(after, memory_bytes=min(after.memory_bytes, most_bytes))
        return replace(status, reservation=held)

    grown = _changed(snapshot, now, change)
    placed = {
        item.job.metadata.uid: item
        for item in plan(_within_reservations(snapshot), now).items
        if isinstance(item, WriteStatus)
        and item.status.placement is not None
        and item.job.status.placement is None
    }
    others = tuple(
        item
        for item in grown.items
        if not (isinstance(item, WriteStatus) and item.job.metadata.uid in placed)
    )
    return replace(grown, items=(*others, *placed.values()))


def shares_exclusive_gpus(snapshot: Snapshot, now: datetime) -> Plan:
    """I2: exclusive jobs look like any other."""

    def open_to_all(job: GPUJob) -> GPUJob:
        return replace(job, spec=replace(job.spec, sharing=Sharing()))

    return plan(replace(snapshot, jobs=tuple(map(open_to_all, snapshot.jobs))), now)


def does_not_see_running_pods(snapshot: Snapshot, now: datetime) -> Plan:
    """I3: a running attempt looks lost, and the next one starts beside it."""
    hidden = (JobPhase.RUNNING, JobPhase.PENDING)
    blind = {job.metadata.uid for job in snapshot.jobs if job.status.phase in hidden}
    pods = tuple(pod for pod in snapshot.pods if pod.job_uid not in blind)
    return plan(replace(snapshot, pods=pods), now)


def counts_attempts_from_one_again(snapshot: Snapshot, now: datetime) -> Plan:
    """I3: attempt numbers go back."""
    return _changed(
        snapshot,
        now,
        lambda job, status: replace(status, attempt=1) if status.attempt > 1 else status,
    )


def gives_no_reasons(snapshot: Snapshot, now: datetime) -> Plan:
    """I4: a waiting job is not told why."""

    def change(job: GPUJob, status: GPUJobStatus) -> GPUJobStatus:
        kept = tuple(c for c in status.conditions if c.type != conditions.SCHEDULED)
        return replace(status, conditions=kept)

    return _changed(snapshot, now, change)


def leaves_orphans(snapshot: Snapshot, now: datetime) -> Plan:
    """I7: pods whose job is gone are somebody else's business."""
    decided = plan(snapshot, now)
    known = {job.metadata.uid for job in snapshot.jobs}
    items = tuple(
        item
        for item in decided.items
        if not (isinstance(item, DeletePod) and item.pod.job_uid not in known)
    )
    return replace(decided, items=items)


def starts_finished_jobs_again(snapshot: Snapshot, now: datetime) -> Plan:
    """I5."""
    jobs = tuple(
        replace(job, status=replace(job.status, phase=JobPhase.PENDING, placement=None))
        if job.finished
        else job
        for job in snapshot.jobs
    )
    return plan(replace(snapshot, jobs=jobs), now)


def forgets_checkpoints(snapshot: Snapshot, now: datetime) -> Plan:
    """I6: the durable step is whatever was said last, and 1 after an interruption."""

    def change(job: GPUJob, status: GPUJobStatus) -> GPUJobStatus:
        if status.checkpoint is None or status.phase is JobPhase.RUNNING:
            return status
        return replace(status, checkpoint=CheckpointReport(1))

    return _changed(snapshot, now, change)


def writes_every_time(snapshot: Snapshot, now: datetime) -> Plan:
    """I8: a status is written although nothing changed, again after a while."""
    decided = plan(snapshot, now)
    written = {item.job.metadata.uid for item in decided.items if isinstance(item, WriteStatus)}
    more = tuple(
        WriteStatus(job, replace(job.status, observed_at=now))
        for job in snapshot.jobs
        if job.finished
        and job.metadata.uid not in written
        and now - (job.status.observed_at or now) > AGAIN
    )
    return replace(decided, items=(*decided.items, *more), next_seconds=AGAIN.total_seconds())


def gives_up_after_an_interruption(snapshot: Snapshot, now: datetime) -> Plan:
    """I9: the end depends on what happened on the way."""

    def change(job: GPUJob, status: GPUJobStatus) -> GPUJobStatus:
        if status.counters.interruptions and status.phase is JobPhase.PENDING:
            return replace(status, phase=JobPhase.FAILED)
        return status

    return _changed(snapshot, now, change)


def never_places_the_first_job(snapshot: Snapshot, now: datetime) -> Plan:
    """I11: one job waits for ever."""
    decided = plan(snapshot, now)
    items = tuple(
        item
        for item in decided.items
        if not (
            isinstance(item, WriteStatus)
            and item.job.metadata.name == "job0"
            and not holds_gpus(item.job)
        )
    )
    return replace(decided, items=items, next_seconds=None)


def kills_without_a_reason(snapshot: Snapshot, now: datetime) -> Plan:
    """I13: pods are deleted before anything is said in the status."""
    decided = plan(snapshot, now)
    current = {(job.metadata.uid, job.status.attempt) for job in snapshot.jobs if not job.finished}
    more = tuple(
        DeletePod(pod, 0, "no reason")
        for pod in snapshot.pods
        if (pod.job_uid, pod.attempt) in current and not pod.finished and pod.deletion_at is None
    )
    return replace(decided, items=(*decided.items, *more))


def trusts_old_readings(snapshot: Snapshot, now: datetime) -> Plan:
    """I14: every reading counts as of now."""
    nodes = tuple(
        replace(node, status=replace(node.status, observed_at=now)) for node in snapshot.gpu_nodes
    )
    return plan(replace(snapshot, gpu_nodes=nodes), now)


MUTANTS: tuple[tuple[str, PlanFunction], ...] = (
    ("I1", places_all_on_one_gpu),
    ("I1", ignores_unmanaged_processes),
    ("I1", ignores_the_driver),
    ("I1", forgets_jobs_that_are_stopping),
    ("I2", shares_exclusive_gpus),
    ("I3", does_not_see_running_pods),
    ("I3", counts_attempts_from_one_again),
    ("I4", gives_no_reasons),
    ("I5", starts_finished_jobs_again),
    ("I6", forgets_checkpoints),
    ("I7", leaves_orphans),
    ("I8", writes_every_time),
    ("I9", gives_up_after_an_interruption),
    ("I11", never_places_the_first_job),
    ("I13", kills_without_a_reason),
    ("I14", trusts_old_readings),
)
