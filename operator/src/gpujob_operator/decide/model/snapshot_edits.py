"""Edits of a snapshot for what-if questions."""

from collections.abc import Mapping, Set
from dataclasses import replace

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.gpunode import GPU, GPUNode
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import NodeView, PodView, Snapshot
from gpujob_operator.decide.model.workers import is_worker_of


def with_statuses(snapshot: Snapshot, statuses: Mapping[str, GPUJobStatus]) -> Snapshot:
    """Returns the snapshot with these statuses, by job UID."""
    jobs = tuple(
        replace(job, status=statuses[job.metadata.uid]) if job.metadata.uid in statuses else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)


def without_attempt(snapshot: Snapshot, job: GPUJob) -> Snapshot:
    """Returns the snapshot as if the job were pending: without its pods, their use and their
    requests.
    """
    uid = job.metadata.uid
    status = replace(job.status, phase=JobPhase.PENDING, placement=None, reservation=None)
    ours = [pod for pod in snapshot.pods if is_worker_of(pod, job)]
    nodes = tuple(_without_requests(node, job, ours) for node in snapshot.nodes)
    uids = frozenset(pod.uid for pod in ours)
    seen = with_statuses(snapshot, {uid: status})
    return replace(
        seen,
        pods=tuple(pod for pod in snapshot.pods if pod.uid not in uids),
        nodes=nodes,
        gpu_nodes=tuple(without_processes(node, uids) for node in snapshot.gpu_nodes),
    )


def without_processes(node: GPUNode, pod_uids: Set[str]) -> GPUNode:
    """Returns the node's readings without the processes of these pods.

    Returns the same object if the node has none of them.
    """
    gpus = tuple(_without_processes(gpu, pod_uids) for gpu in node.status.gpus)
    if all(one is other for one, other in zip(gpus, node.status.gpus, strict=True)):
        return node
    return replace(node, status=replace(node.status, gpus=gpus))


def _without_processes(gpu: GPU, pod_uids: Set[str]) -> GPU:
    left = tuple(process for process in gpu.processes if process.pod_uid not in pod_uids)
    if len(left) == len(gpu.processes):
        return gpu
    gone = sum(p.memory_bytes for p in gpu.processes) - sum(p.memory_bytes for p in left)
    used = max(gpu.memory_used_bytes - gone, 0)
    return replace(gpu, processes=left, memory_used_bytes=used)


def _without_requests(node: NodeView, job: GPUJob, pods: list[PodView]) -> NodeView:
    count = sum(pod.node == node.name and not pod.finished for pod in pods)
    if not count:
        return node
    cpu_milli, memory_bytes = host_requests(job)
    return replace(
        node,
        cpu_milli_free=node.cpu_milli_free + count * cpu_milli,
        memory_bytes_free=node.memory_bytes_free + count * memory_bytes,
        pods_free=node.pods_free + count,
    )
