"""Whose pod is it: the one rule by which a pod is a worker of a GPUJob.

A worker is in the job's namespace, is called `<job>-<attempt>-<rank>` with a rank that the job has,
and has the job for its controller owner; or its UID is in the job's status, so that an owner
reference that was stripped changes nothing. Labels and annotations prove nothing. Every other pod
is unmanaged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, WorkerPlacement
from gpujob_api.manifest import GPUJOB
from gpujob_api.meta import API_VERSION
from gpujob_operator.decide.model.snapshot import PodView

# A job's namespace and name.
JobName = tuple[str, str]


def worker_name(job_name: str, attempt: int, rank: int) -> str:
    """Deterministic, so that creating it twice is refused by the API server."""
    return f"{job_name}-{attempt}-{rank}"


def controller_uid(metadata: Mapping[str, Any]) -> str:
    """The UID of the GPUJob that is the object's controller owner, or "". Raises nothing."""
    owners = metadata.get("ownerReferences")
    for owner in cast("list[object]", owners) if isinstance(owners, list) else ():
        if not isinstance(owner, Mapping):
            continue
        reference = cast("Mapping[str, Any]", owner)
        if reference.get("controller") is True:
            ours = (reference.get("apiVersion"), reference.get("kind")) == (
                API_VERSION,
                GPUJOB.kind,
            )
            return str(reference.get("uid") or "") if ours else ""
    return ""


def was_created_for(metadata: Mapping[str, Any], job: GPUJob, rank: int) -> bool:
    """Whether this object's metadata are those of the worker of the current attempt."""
    return (
        metadata.get("namespace") == job.metadata.namespace
        and metadata.get("name") == worker_name(job.metadata.name, job.status.attempt, rank)
        and controller_uid(metadata) == job.metadata.uid
    )


def is_worker_of(pod: PodView, job: GPUJob) -> bool:
    """Whether the pod is a worker of the job, of whatever attempt."""
    if job_name_of(pod) != (job.metadata.namespace, job.metadata.name):
        return False
    if pod.rank >= job.spec.workers:
        # The number of workers never changes: no attempt ever had this rank.
        return False
    if pod.job_uid == job.metadata.uid:
        return True
    place = place_of(pod, job)
    return place is not None and place.pod_uid == pod.uid


def speaks_for(pod: PodView, job: GPUJob) -> bool:
    """Whether what the pod reports and uses is the job's: not of one that took a worker's place."""
    place = place_of(pod, job)
    return is_worker_of(pod, job) and (place is None or place.pod_uid in (None, pod.uid))


def place_of(pod: PodView, job: GPUJob) -> WorkerPlacement | None:
    """The place that the current attempt has for a pod of this attempt and rank."""
    placement = job.status.placement
    if placement is None or pod.attempt != job.status.attempt:
        return None
    for worker in placement.workers:
        if worker.rank == pod.rank:
            return worker
    return None


def current_workers(job: GPUJob, pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """Of the job's pods, those of the current attempt: at most one a rank once their UIDs are
    known."""
    found: list[PodView] = []
    for pod in pods:
        place = place_of(pod, job)
        if place is not None and place.pod_uid in (None, pod.uid):
            found.append(pod)
    return tuple(found)


def perhaps_workers(job: GPUJob, in_the_way: Iterable[PodView]) -> list[PodView]:
    """Live pods that have the name of a worker of which no pod is known, and no owner: the
    reference may have been stripped before the pod was seen, and the worker may run."""
    found: list[PodView] = []
    for pod in in_the_way:
        place = place_of(pod, job)
        if place is not None and place.pod_uid is None and not pod.job_uid and not pod.finished:
            found.append(pod)
    return found


def lost_ranks(job: GPUJob, current: Iterable[PodView]) -> list[int]:
    """Ranks whose pod was there and is no more."""
    placement = job.status.placement
    present = {pod.rank for pod in current}
    workers = placement.workers if placement is not None else ()
    return [w.rank for w in workers if w.pod_uid is not None and w.rank not in present]


def with_pod_uids(status: GPUJobStatus, current: Iterable[PodView]) -> GPUJobStatus:
    """The status that knows the UIDs of these pods of its attempt; the same object if it did."""
    placement = status.placement
    if placement is None or all([worker.pod_uid for worker in placement.workers]):
        return status
    # The first of two that claim one rank, whatever order they came in.
    uids = {pod.rank: pod.uid for pod in sorted(current, key=lambda pod: pod.uid, reverse=True)}
    workers = tuple(
        replace(worker, pod_uid=uids[worker.rank])
        if worker.pod_uid is None and worker.rank in uids
        else worker
        for worker in placement.workers
    )
    if workers == placement.workers:
        return status
    return changed(status, placement=replace(placement, workers=workers))


def job_name_of(pod: PodView) -> JobName | None:
    """The namespace and name of the job whose worker the pod is by its own name, or None."""
    ending = worker_name("", pod.attempt, pod.rank)
    if not pod.name.endswith(ending) or len(pod.name) == len(ending):
        return None
    return pod.namespace, pod.name[: -len(ending)]


@dataclass(frozen=True, slots=True)
class Crew:
    """The pods of one job in order. Make it with `crew_of`, for the job as it is now."""

    # Of all attempts.
    pods: tuple[PodView, ...] = ()
    # Those of the current attempt.
    current: tuple[PodView, ...] = ()
    # Pods of others that have the name of a worker of the current attempt.
    in_the_way: tuple[PodView, ...] = ()


def crew_of(job: GPUJob, namesakes: Iterable[PodView]) -> Crew:
    """`namesakes` are pods called as if they were the job's."""
    ours: list[PodView] = []
    others: list[PodView] = []
    for pod in sorted(namesakes, key=lambda p: (p.attempt, p.rank, p.uid)):
        if is_worker_of(pod, job):
            ours.append(pod)
        elif place_of(pod, job) is not None:
            others.append(pod)
    return Crew(tuple(ours), current_workers(job, ours), tuple(others))


def joined(jobs: Iterable[GPUJob], pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """Workers of these jobs, each with its job's UID, and pods whose job is not there."""
    by_name = {(job.metadata.namespace, job.metadata.name): job for job in jobs}
    uids = {job.metadata.uid for job in by_name.values()}
    found: list[PodView] = []
    for pod in pods:
        name = job_name_of(pod)
        job = by_name.get(name) if name is not None else None
        if job is not None and is_worker_of(pod, job):
            found.append(replace(pod, job_uid=job.metadata.uid))
        elif name is not None and pod.job_uid and pod.job_uid not in uids:
            found.append(pod)
    return tuple(found)
