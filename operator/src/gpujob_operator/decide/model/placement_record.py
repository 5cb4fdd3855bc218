"""What the pod of a one-worker job records of its attempt.

The status does not have to be written before such a pod is created. One object, which is either
created or not, holds the attempt's place and reservation. The next leader reads both from the pod.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpujob_api.copies import changed
from gpujob_api.gpujob import (
    GPUJob,
    GPUJobStatus,
    JobPhase,
    Placement,
    Reservation,
    ReservationSource,
)
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.waiting_time import let_go

if TYPE_CHECKING:
    from gpujob_operator.decide.model.snapshot import PodView

# The message of the condition Running from placement until all workers run or something blocks
# them.
STARTING_MESSAGE = "the pods are being created and started"


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """The parts of a status that a placement decides.

    `profile` is the name of the attempt's GPUProfile.
    """

    job_uid: str
    placement: Placement
    reservation: Reservation
    profile: str
    placed_at: datetime
    # None in records of releases that did not record the queue.
    queue: str | None = None


def record_of(job: GPUJob) -> PlacementRecord:
    """Returns the record of the attempt of this placed job."""
    status = job.status
    placement, reservation = status.placement, status.reservation
    assert placement is not None, "only a placed job has a placement to record"
    assert reservation is not None, "a placed job has a reservation"
    assert status.attempt_started_at is not None, "a placement has its time"
    return PlacementRecord(
        job.metadata.uid,
        placement,
        reservation,
        status.profile or "",
        status.attempt_started_at,
        status.queue,
    )


def placed_status(job: GPUJob, record: PlacementRecord, attempt: int) -> GPUJobStatus:
    """Returns the status of a pending job after this record placed it as this attempt."""
    writer = ConditionWriter(job, job.status, record.placed_at)
    writer.set(conditions.SCHEDULED, True, "Placed", placement_message(job, record, attempt))
    # The same condition holds while the pods are created and start, so setting it now saves a
    # write.
    writer.set(conditions.RUNNING, False, "Starting", STARTING_MESSAGE)
    waiting = let_go(job, record.placed_at) | {"next_attempt_at": None}
    return writer.status(
        phase=JobPhase.STARTING,
        attempt=attempt,
        placement=record.placement,
        reservation=record.reservation,
        profile=record.profile or None,
        queue=record.queue or job.spec.queue,
        attempt_started_at=record.placed_at,
        progressed_at=None,
        stop=None,
        failure=None,
        **waiting,
    )


def placement_message(job: GPUJob, record: PlacementRecord, attempt: int) -> str:
    workers, held = record.placement.workers, record.reservation
    where = ", ".join(sorted({worker.node for worker in workers}))
    gpus = ", ".join(uuid for worker in workers for uuid in worker.gpus[:4])
    spot = ", spot" if record.placement.spot else ""
    memory = format_memory(held.memory_bytes)
    text = (
        f"attempt {attempt} on {where} ({gpus}), reserves {memory} on each GPU "
        f"({held.source.value}{spot})"
    )
    hint = ignored_hint(job, held, record.profile)
    return f"{text}; {hint}" if hint else text


def ignored_hint(job: GPUJob, held: Reservation, profile: str) -> str:
    """Returns a note that the user's memory hint is larger than any measurement and does not count.

    Returns "" if the hint counts or is small enough. `profile` is the name of the workload's
    GPUProfile.
    """
    hint = job.spec.gpu.memory
    if hint is None or hint.bytes <= held.memory_bytes:
        return ""
    asked = f"gpu.memory ({format_memory(hint.bytes)}) is a hint and does not count"
    if held.source is ReservationSource.PROFILE:
        return f"{asked}: earlier runs used less; delete GPUProfile {profile} to measure again"
    if held.source is ReservationSource.MEASURED:
        return f"{asked}: the job was measured to use less"
    return ""


def records(pod: "PodView", job: GPUJob) -> bool:
    """Returns whether the pod records an attempt of the job.

    The pod must have a worker's name in the job's namespace, which only one pod can have. The
    annotation alone does not count: a node that edits its pods cannot place a job elsewhere. The
    owner reference may have been removed.
    """
    metadata, record = job.metadata, pod.record
    return (
        record is not None
        and record.job_uid == metadata.uid
        and pod.namespace == metadata.namespace
        and pod.name == f"{metadata.name}-{pod.attempt}-0"
        and pod.job_uid in ("", metadata.uid)
        and pod.node in (None, record.placement.workers[0].node)
    )


def is_recorded(job: GPUJob, pod: "PodView") -> bool:
    """Returns whether the pod records the next attempt of the job, and the job is waiting."""
    status = job.status
    return (
        records(pod, job)
        and pod.attempt == status.attempt + 1
        and job.spec.workers == 1
        and status.placement is None
        and not status.finished
    )


def recorded_status(job: GPUJob, pod: "PodView") -> GPUJobStatus:
    """Returns the status of a job for which `is_recorded` holds."""
    record = pod.record
    assert record is not None, "is_recorded"
    workers = tuple(replace(worker, pod_uid=pod.uid) for worker in record.placement.workers)
    status = placed_status(job, record, pod.attempt)
    return changed(status, placement=replace(record.placement, workers=workers))


def with_records(jobs: Iterable[GPUJob], pods: Iterable["PodView"]) -> tuple[GPUJob, ...]:
    """Returns the jobs, placed if their pods record an attempt that no status has yet."""
    by_name = pods_with_records(pods)
    found: list[GPUJob] = []
    for job in jobs:
        pod = by_name.get(next_pod_name(job))
        recorded = pod is not None and is_recorded(job, pod)
        found.append(
            replace(job, status=recorded_status(job, pod)) if recorded and pod is not None else job
        )
    return tuple(found)


def pods_with_records(pods: Iterable["PodView"]) -> dict[tuple[str, str], "PodView"]:
    """Returns the pods that have a record, by namespace and name."""
    return {(pod.namespace, pod.name): pod for pod in pods if pod.record is not None}


def next_pod_name(job: GPUJob) -> tuple[str, str]:
    """Returns namespace and name of the pod of the job's next attempt, if that has one worker."""
    return job.metadata.namespace, f"{job.metadata.name}-{job.status.attempt + 1}-0"


def came_late(job: GPUJob, pod: "PodView") -> bool:
    """Returns whether the pod records an attempt that the present leader neither placed nor found.

    Another leader requested it, and it arrived after the present leader began to lead.
    """
    return pod.record is not None and pod.attempt > job.status.attempt
