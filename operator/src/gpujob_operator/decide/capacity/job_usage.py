"""What one job and its pods reserve and request."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.capacity.cluster import (
    Tenant,
    as_tenant,
)
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import GonePod, PodPhase, PodView
from gpujob_operator.decide.model.workers import JobPods, place_of
from gpujob_operator.decide.packing.party import ANYBODY, Party


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The reservations and requests of one job and its pods."""

    tenant: Tenant | None = None
    # Node and GPU of each of the job's GPUs. A GPU that two workers share is listed twice.
    gpus: tuple[Place, ...] = ()
    # Live pods of the attempt that reserves the GPUs, by UID.
    pods: tuple[str, ...] = ()
    # Node and GPU of live pods of any other attempt, or of a job that is gone. The node is "" for a
    # pod that is not bound yet.
    gpus_of_stale_pods: tuple[Place, ...] = ()
    # Requests of workers that are not on their node yet.
    not_yet_bound: tuple[tuple[str, int, int], ...] = ()
    # Requests of live workers that are on their node, of any attempt.
    bound: tuple[tuple[str, int, int], ...] = ()
    job_uid: str = ""
    # Pods that are proven finished, with the time of their end and their GPUs.
    ended: tuple["TerminatedPod", ...] = ()


@dataclass(frozen=True, slots=True)
class TerminatedPod:
    pod_uid: str
    at: datetime | None
    gpus: tuple[str, ...]


NOTHING = JobUsage()


def usage_of(
    job: GPUJob, job_pods: JobPods, requests: PodRequests, party: Party = ANYBODY
) -> JobUsage:
    """Returns the usage of a job. `requests` are those of one worker."""
    if job.status.placement is None and not job_pods.pods:
        return NOTHING
    live = [pod for pod in job_pods.pods if not pod.finished]
    uids = {pod.uid for pod in job_pods.current}
    leaves = job.metadata.deletion_timestamp is not None
    # The status of a job that is being deleted is no longer written, so only its pods show when it
    # has released its GPUs.
    has_left = leaves and not any(pod.uid in uids for pod in live)
    placement = job.status.placement if not (job.finished or has_left) else None
    rest = live if placement is None else [pod for pod in live if pod.uid not in uids]
    strays = tuple([stray for pod in rest for stray in _gpus_of_stale_pod(pod, job)])
    cpu, memory = requests
    on_nodes = tuple([(pod.node, cpu, memory) for pod in live if pod.node is not None])
    if placement is None:
        return JobUsage(gpus_of_stale_pods=strays, bound=on_nodes, ended=_ended(job_pods.pods))
    bound = {pod.rank for pod in job_pods.current if _is_bound(pod)}
    tenant = as_tenant(job, party)
    workers = placement.workers
    unbound = [] if leaves else [worker for worker in workers if worker.rank not in bound]
    return JobUsage(
        tenant=tenant,
        gpus=() if tenant is None else tuple([(w.node, uuid) for w in workers for uuid in w.gpus]),
        pods=tuple([pod.uid for pod in live if pod.uid in uids]),
        gpus_of_stale_pods=strays,
        not_yet_bound=tuple([(worker.node, cpu, memory) for worker in unbound]),
        bound=on_nodes,
        job_uid=job.metadata.uid,
        ended=_ended(job_pods.pods),
    )


def usage_of_orphans(pods: Sequence[PodView]) -> JobUsage:
    """Returns the usage of pods whose controller owner is a GPUJob that does not exist."""
    live = [pod for pod in pods if not pod.finished]
    strays = tuple(stray for pod in live for stray in _gpus_of_stale_pod(pod, None))
    return JobUsage(gpus_of_stale_pods=strays, ended=_ended(pods))


def _ended(pods: Sequence[PodView]) -> tuple[TerminatedPod, ...]:
    ended = [pod for pod in pods if pod.finished]
    return tuple([TerminatedPod(pod.uid, pod.finished_at, pod.gpus) for pod in ended])


def _gpus_of_stale_pod(pod: PodView, job: GPUJob | None) -> list[Place]:
    """Returns the GPUs that a live pod outside its job's attempt holds, on its own node only.

    A pod that never ran and never will holds none. A pod of a later attempt than the job's holds
    none until it is bound, because anybody in its namespace may create such a pod.
    """
    is_later = job is not None and pod.attempt > job.status.attempt
    if pod.node is None and (pod.deletion_at is not None or is_later):
        return []
    place = place_of(pod, job) if job is not None else None
    is_current = place is not None and place.pod_uid in (None, pod.uid)
    gpus = place.gpus if place is not None and is_current else pod.gpus
    return [(pod.node or "", uuid) for uuid in gpus]


def usage_of_gone(pod: GonePod) -> JobUsage:
    return JobUsage(ended=(TerminatedPod(pod.uid, pod.gone_at, pod.gpus),))


def _is_bound(pod: PodView) -> bool:
    return pod.node is not None or pod.phase is not PodPhase.PENDING
