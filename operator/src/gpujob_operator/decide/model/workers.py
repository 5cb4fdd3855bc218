"""Decides whether a pod is a worker of a GPUJob.

A worker is in the job's namespace, is named `<job>-<attempt>-<rank>` with a rank that the job has,
and has the job as its controller owner. A pod without an owner is also a worker if its UID is in
the job's status, or if the pod records an attempt of the job. Removing the owner reference
therefore changes nothing. Labels and other annotations do not count. Every other pod is unmanaged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, WorkerPlacement
from gpujob_api.manifest import GPUJOB
from gpujob_api.meta import API_VERSION
from gpujob_operator.decide.model.placement_record import records
from gpujob_operator.decide.model.snapshot import PerhapsCreated, PodView, SeenGPUs

# A job's namespace and name.
JobName = tuple[str, str]


def worker_name(job_name: str, attempt: int, rank: int) -> str:
    """Returns the worker's name.

    It is deterministic, so the API server refuses a second creation.
    """
    return f"{job_name}-{attempt}-{rank}"


def controller_uid(metadata: Mapping[str, Any], kind: str = GPUJOB.kind) -> str:
    """Returns the UID of the GPUJob, or the object of another kind of ours, that is the object's
    controller owner, or "". Never raises.
    """
    owners = metadata.get("ownerReferences")
    for owner in cast("list[object]", owners) if isinstance(owners, list) else ():
        if not isinstance(owner, Mapping):
            continue
        reference = cast("Mapping[str, Any]", owner)
        if reference.get("controller") is True:
            ours = (reference.get("apiVersion"), reference.get("kind")) == (
                API_VERSION,
                kind,
            )
            return str(reference.get("uid") or "") if ours else ""
    return ""


def was_created_for(metadata: Mapping[str, Any], job: GPUJob, rank: int) -> bool:
    """Returns whether this metadata belongs to the worker of the current attempt."""
    return (
        metadata.get("namespace") == job.metadata.namespace
        and metadata.get("name") == worker_name(job.metadata.name, job.status.attempt, rank)
        and controller_uid(metadata) == job.metadata.uid
    )


def is_worker_of(pod: PodView, job: GPUJob) -> bool:
    """Returns whether the pod is a worker of any attempt of the job."""
    if pod.namespace != job.metadata.namespace:
        return False
    if pod.name != worker_name(job.metadata.name, pod.attempt, pod.rank):
        return False
    if pod.rank >= job.spec.workers:
        # The number of workers never changes, so no attempt ever had this rank.
        return False
    if pod.job_uid == job.metadata.uid:
        return True
    place = place_of(pod, job)
    if place is not None and place.pod_uid is not None:
        return place.pod_uid == pod.uid
    return not pod.job_uid and records(pod, job)


def speaks_for(pod: PodView, job: GPUJob) -> bool:
    """Returns whether the pod's reports and use belong to the job.

    A pod that took a worker's name does not count.
    """
    place = place_of(pod, job)
    return is_worker_of(pod, job) and (place is None or place.pod_uid in (None, pod.uid))


def place_of(pod: PodView, job: GPUJob) -> WorkerPlacement | None:
    """Returns the current attempt's placement of a pod of this attempt and rank, or None."""
    placement = job.status.placement
    if placement is None or pod.attempt != job.status.attempt:
        return None
    for worker in placement.workers:
        if worker.rank == pod.rank:
            return worker
    return None


def current_workers(job: GPUJob, pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """Returns the job's pods of the current attempt, at most one per rank once their UIDs are
    known.
    """
    found: list[PodView] = []
    for pod in pods:
        place = place_of(pod, job)
        if place is not None and place.pod_uid in (None, pod.uid):
            found.append(pod)
    return tuple(found)


def perhaps_workers(job: GPUJob, in_the_way: Iterable[PodView]) -> list[PodView]:
    """Returns live pods without an owner that have the name of a worker whose pod is unknown.

    The owner reference may have been removed before the pod was seen, so the worker may be running.
    """
    found: list[PodView] = []
    for pod in in_the_way:
        place = place_of(pod, job)
        if place is not None and place.pod_uid is None and not pod.job_uid and not pod.finished:
            found.append(pod)
    return found


def perhaps_created_ranks(job: GPUJob, perhaps: PerhapsCreated | None) -> tuple[int, ...]:
    """Returns ranks of the current attempt whose pods may have been created."""
    same = perhaps is not None and perhaps.attempt == job.status.attempt
    return perhaps.ranks if perhaps is not None and same else ()


def done_ranks(status: GPUJobStatus) -> frozenset[int]:
    """Returns ranks of the current attempt that are known to be done. Their pods are no longer
    needed.
    """
    placement = status.placement
    return frozenset(w.rank for w in placement.workers if w.done) if placement else frozenset()


def lost_ranks(
    job: GPUJob, job_pods: "JobPods", perhaps: PerhapsCreated | None = None
) -> list[int]:
    """Returns ranks whose pod existed, or may have existed, and is gone.

    If another process placed the attempt and no pod is left, possibly no pod ever existed. Such
    ranks are not lost. They begin again under another attempt number.
    """
    placement = job.status.placement
    present = {pod.rank for pod in job_pods.current} | done_ranks(job.status)
    workers = placement.workers if placement is not None else ()
    doubtful: set[int] = set()
    if perhaps is not None and (present or not perhaps.by_another):
        doubtful.update(perhaps_created_ranks(job, perhaps))
        doubtful -= {pod.rank for pod in perhaps_workers(job, job_pods.in_the_way)}
    existed = [w.rank for w in workers if w.pod_uid is not None or w.rank in doubtful]
    return [rank for rank in existed if rank not in present]


def with_pod_uids(status: GPUJobStatus, current: Iterable[PodView]) -> GPUJobStatus:
    """Returns the status with the UIDs of these pods of its attempt, or the same object if it had
    them.
    """
    placement = status.placement
    if placement is None or all([worker.pod_uid for worker in placement.workers]):
        return status
    # Takes the lowest UID of two pods with one rank, whatever their order of arrival.
    uids = {pod.rank: pod.uid for pod in sorted(current, key=lambda pod: pod.uid, reverse=True)}
    if not any([worker.pod_uid is None and worker.rank in uids for worker in placement.workers]):
        return status
    workers = tuple(
        [
            changed(worker, pod_uid=uids[worker.rank])
            if worker.pod_uid is None and worker.rank in uids
            else worker
            for worker in placement.workers
        ]
    )
    return changed(status, placement=changed(placement, workers=workers))


def with_seen_gpus(status: GPUJobStatus, seen: Iterable[SeenGPUs]) -> GPUJobStatus:
    """Returns the status with the GPUs on which its workers were seen.

    A worker keeps its GPUs if another number of GPUs was seen. Returns the same object if nothing
    changes. It serves clusters in which the kubelet picks the GPUs.
    """
    placement = status.placement
    if placement is None:
        return status
    gpus = {one.rank: one.gpus for one in seen}
    workers = tuple(
        replace(worker, gpus=gpus[worker.rank])
        if set(gpus.get(worker.rank, ())) != set(worker.gpus)
        and len(gpus.get(worker.rank, ())) == len(worker.gpus)
        else worker
        for worker in placement.workers
    )
    if workers == placement.workers:
        return status
    return changed(status, placement=replace(placement, workers=workers))


def job_name_of(pod: PodView) -> JobName | None:
    """Returns namespace and name of the job that the pod's own name refers to, or None."""
    ending = worker_name("", pod.attempt, pod.rank)
    if not pod.name.endswith(ending) or len(pod.name) == len(ending):
        return None
    return pod.namespace, pod.name[: -len(ending)]


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of one job, sorted. Create it with `job_pods_of` from the job's current state."""

    # All attempts.
    pods: tuple[PodView, ...] = ()
    # The current attempt.
    current: tuple[PodView, ...] = ()
    # Foreign pods that have the name of a worker of the current attempt.
    in_the_way: tuple[PodView, ...] = ()


NO_PODS = JobPods()


def job_pods_of(job: GPUJob, namesakes: Iterable[PodView]) -> JobPods:
    """Returns the job's pods. `namesakes` are pods named like the job's workers."""
    ordered = sorted(namesakes, key=lambda p: (p.attempt, p.rank, p.uid))
    if not ordered:
        return NO_PODS
    ours: list[PodView] = []
    others: list[PodView] = []
    for pod in ordered:
        if is_worker_of(pod, job):
            ours.append(pod)
        elif place_of(pod, job) is not None:
            others.append(pod)
    return JobPods(tuple(ours), current_workers(job, ours), tuple(others))


def joined(jobs: Iterable[GPUJob], pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """Returns the workers of these jobs, each with its job's UID, and pods whose job does not
    exist.
    """
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
