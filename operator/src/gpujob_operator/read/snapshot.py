"""Builds a snapshot from one listing of every kind, like the operator's cache.

Two kinds of information are in no object: reports since the last status write, and use that was
measured but not yet written. Decisions on such a snapshot rely on the statuses alone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import gpuprofile_from_manifest, gpuqueue_from_manifest
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import nodes_of
from gpujob_operator.decide.model.placement_record import with_records
from gpujob_operator.decide.model.snapshot import InvalidJob, NodeView, Snapshot
from gpujob_operator.read.nodes import cached_node, counts, with_pods
from gpujob_operator.read.nouns import read_gpu_node, read_job
from gpujob_operator.read.pods import CachedPod, cached_pod
from gpujob_operator.read.volumes import bound_volume, limits_nodes

Manifest = Mapping[str, Any]
ViewT = TypeVar("ViewT")


@dataclass(frozen=True, slots=True)
class Objects:
    """Manifests by kind. `nodes` are all nodes, `pods` those of all namespaces."""

    jobs: Iterable[Manifest] = ()
    gpu_nodes: Iterable[Manifest] = ()
    queues: Iterable[Manifest] = ()
    profiles: Iterable[Manifest] = ()
    pods: Iterable[Manifest] = ()
    nodes: Iterable[Manifest] = ()
    volumes: Iterable[Manifest] = ()


def snapshot_of(objects: Objects, configuration: Configuration) -> Snapshot:
    """Returns the snapshot of these objects. Unreadable objects are left out, as in the cache."""
    jobs = _readable(objects.jobs, read_job)
    pods = _readable(objects.pods, cached_pod)
    views = tuple(pod.view for pod in pods if pod.view is not None)
    good = with_records((job for job in jobs if isinstance(job, GPUJob)), views)
    used = {name for job in good for name in nodes_of(job)}
    return Snapshot(
        jobs=good,
        invalid_jobs=tuple(job for job in jobs if isinstance(job, InvalidJob)),
        pods=views,
        nodes=_node_views(objects.nodes, pods, used),
        gpu_nodes=_readable(objects.gpu_nodes, lambda one: read_gpu_node(one, _ignore)),
        queues=_readable(objects.queues, gpuqueue_from_manifest),
        profiles=_readable(objects.profiles, gpuprofile_from_manifest),
        volumes=tuple(filter(limits_nodes, _readable(objects.volumes, bound_volume))),
        configuration=configuration,
    )


def _readable(
    manifests: Iterable[Manifest], read: Callable[[Manifest], ViewT]
) -> tuple[ViewT, ...]:
    found: list[ViewT] = []
    for manifest in manifests:
        with suppress(FieldError):
            found.append(read(manifest))
    return tuple(found)


def _node_views(
    manifests: Iterable[Manifest], pods: Iterable[CachedPod], used: Container[str]
) -> tuple[NodeView, ...]:
    """Returns the nodes minus the pods that take room on them, and their requests.

    `used` are the names of nodes with attempts.
    """
    count = Counter(pod.node for pod in pods if pod.node is not None and pod.takes_room)
    cpu_milli, memory_bytes = defaultdict[str, int](int), defaultdict[str, int](int)
    for pod in pods:
        if pod.node is not None and pod.takes_room:
            cpu_milli[pod.node] += pod.requests.cpu_milli
            memory_bytes[pod.node] += pod.requests.memory_bytes
    nodes = (node for node in _readable(manifests, cached_node) if counts(node, used))
    return tuple(
        with_pods(node, count[name], cpu_milli[name], memory_bytes[name])
        for node in nodes
        for name in (node.empty.name,)
    )


def _ignore(reason: str) -> None:
    """Ignores implausible readings, which the operator would count."""
