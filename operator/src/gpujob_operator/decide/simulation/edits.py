"""Edits of a snapshot: jobs, nodes and queues that are added, replaced or removed."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPU, GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.notices import NOTICE_TAINTS
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME, NodeView, Snapshot

ADDED_NODES_MAX = 1000
ADDED_JOBS_MAX = 1000
# Prefix of the UIDs of added jobs.
ADDED_UID = "what-if"


@dataclass(frozen=True, slots=True)
class MoreNodes:
    """`count` idle nodes with the GPUs, labels, taints and price of the node `like`."""

    like: str
    count: int


@dataclass(frozen=True, slots=True)
class Edits:
    """Added jobs and queues as objects, jobs with another spec, and removed nodes by name."""

    jobs: tuple[GPUJob, ...] = ()
    # Existing jobs as after an edit of their spec.
    changed_jobs: tuple[GPUJob, ...] = ()
    # A queue replaces the queue of the same name, or is added.
    queues: tuple[GPUQueue, ...] = ()
    more_nodes: tuple[MoreNodes, ...] = ()
    without_nodes: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        jobs = self.jobs or self.changed_jobs
        return bool(jobs or self.queues or self.more_nodes or self.without_nodes)


def edited(snapshot: Snapshot, edits: Edits, now: datetime) -> Snapshot:
    """Returns the snapshot with the edits.

    Raises `FieldError` for an unknown node, for too many nodes or jobs, for a job that already
    exists, and for a changed one that does not.
    """
    after = _with_nodes(snapshot, edits.more_nodes)
    after = _without_nodes(after, edits.without_nodes)
    after = _with_queues(after, edits.queues)
    after = _with_changed_jobs(after, edits.changed_jobs)
    return _with_jobs(after, edits.jobs, now)


def _with_changed_jobs(snapshot: Snapshot, jobs: tuple[GPUJob, ...]) -> Snapshot:
    """Replaces specs as the API server does: the job keeps its identity and its status."""
    if not jobs:
        return snapshot
    changed = {job.metadata.key: job for job in jobs}
    missing = sorted(changed.keys() - {job.metadata.key for job in snapshot.jobs})
    if missing:
        raise FieldError("metadata.name", f"job {missing[0]} does not exist")
    return replace(
        snapshot,
        jobs=tuple(
            _with_spec(job, changed[job.metadata.key]) if job.metadata.key in changed else job
            for job in snapshot.jobs
        ),
    )


def _with_spec(job: GPUJob, edited: GPUJob) -> GPUJob:
    if edited.spec == job.spec:
        return job
    metadata = replace(job.metadata, generation=job.metadata.generation + 1)
    return replace(job, metadata=metadata, spec=edited.spec)


def _with_jobs(snapshot: Snapshot, jobs: tuple[GPUJob, ...], now: datetime) -> Snapshot:
    if len(jobs) > ADDED_JOBS_MAX:
        raise FieldError("jobs", f"at most {ADDED_JOBS_MAX} can be added; got {len(jobs)}")
    known = {(job.metadata.namespace, job.metadata.name) for job in snapshot.jobs}
    added: list[GPUJob] = []
    for number, job in enumerate(jobs):
        name = (job.metadata.namespace, job.metadata.name)
        if name in known:
            raise FieldError("metadata.name", f"job {name[0]}/{name[1]} already exists")
        known.add(name)
        metadata = replace(
            job.metadata,
            uid=f"{ADDED_UID}-{number}",
            generation=1,
            resource_version="",
            creation_timestamp=now,
            deletion_timestamp=None,
        )
        added.append(GPUJob(metadata, job.spec))
    return replace(snapshot, jobs=(*snapshot.jobs, *added))


def _with_queues(snapshot: Snapshot, queues: tuple[GPUQueue, ...]) -> Snapshot:
    """Keeps the identity and the status of an existing queue."""
    found = {queue.metadata.name: queue for queue in snapshot.queues}
    for queue in queues:
        name = queue.metadata.name
        metadata = replace(queue.metadata, uid=f"{ADDED_UID}-{name}", generation=1)
        known = found.get(name, GPUQueue(metadata))
        found[name] = replace(known, spec=queue.spec)
    return replace(snapshot, queues=tuple(found.values()))


def _without_nodes(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """Returns the snapshot as if the nodes were lost now, together with the pods on them."""
    gone = set(names)
    for name in sorted(gone):
        _node(snapshot, name, "without node")
    return replace(
        snapshot,
        nodes=tuple(node for node in snapshot.nodes if node.name not in gone),
        gpu_nodes=tuple(node for node in snapshot.gpu_nodes if node.metadata.name not in gone),
        pods=tuple(pod for pod in snapshot.pods if pod.node not in gone),
    )


def _with_nodes(snapshot: Snapshot, more: Iterable[MoreNodes]) -> Snapshot:
    nodes, gpu_nodes = list(snapshot.nodes), list(snapshot.gpu_nodes)
    taken = {node.name for node in nodes}
    for one in more:
        if not 1 <= one.count <= ADDED_NODES_MAX:
            raise FieldError("more nodes", f"must be 1 to {ADDED_NODES_MAX}; got {one.count}")
        view, gpu_node = _node(snapshot, one.like, "more nodes")
        number = 0
        for _ in range(one.count):
            while (name := f"{one.like}-{ADDED_UID}-{number}") in taken:
                number += 1
            taken.add(name)
            nodes.append(_idle_view(view, name))
            gpu_nodes.append(_idle_gpu_node(gpu_node, name, len(gpu_nodes)))
    return replace(snapshot, nodes=tuple(nodes), gpu_nodes=tuple(gpu_nodes))


def _node(snapshot: Snapshot, name: str, field: str) -> tuple[NodeView, GPUNode]:
    views = {node.name: node for node in snapshot.nodes}
    gpu_nodes = {node.metadata.name: node for node in snapshot.gpu_nodes}
    if name not in views or name not in gpu_nodes:
        there = ", ".join(sorted(views.keys() & gpu_nodes.keys())[:20]) or "none"
        raise FieldError(field, f"no node {name} with an agent; existing nodes: {there}")
    return views[name], gpu_nodes[name]


def _idle_view(like: NodeView, name: str) -> NodeView:
    labels = {**like.labels, **({LABEL_HOSTNAME: name} if LABEL_HOSTNAME in like.labels else {})}
    return replace(
        like,
        name=name,
        ready=True,
        unschedulable=False,
        taints=tuple(taint for taint in like.taints if taint.key not in NOTICE_TAINTS),
        labels=labels,
        cpu_milli_free=like.cpu_milli_allocatable,
        memory_bytes_free=like.memory_bytes_allocatable,
        pods_free=like.pods_allocatable,
        not_ready_since=None,
        conditions=(),
        deletion_at=None,
    )


def _idle_gpu_node(like: GPUNode, name: str, number: int) -> GPUNode:
    gpus = tuple(_idle_gpu(gpu, number, index) for index, gpu in enumerate(like.status.gpus))
    metadata = replace(like.metadata, name=name, uid=f"{ADDED_UID}-{name}")
    return GPUNode(
        metadata=metadata,
        spec=replace(like.spec, unschedulable=False),
        status=replace(like.status, gpus=gpus),
    )


def _idle_gpu(like: GPU, node: int, index: int) -> GPU:
    return replace(
        like,
        uuid=f"GPU-{ADDED_UID}-{node}-{index}",
        memory_used_bytes=0,
        utilization_percent=0.0,
        healthy=True,
        health_message="",
        processes=(),
    )
