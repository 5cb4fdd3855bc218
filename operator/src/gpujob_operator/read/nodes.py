"""Node manifests, less the requests of the pods bound to them, to `NodeView`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpujob_api.codec import parse_time
from gpujob_api.meta import LABEL_SPOT
from gpujob_operator.decide.snapshot import NodeView, Taint
from gpujob_operator.read.requests import cpu_milli, memory_bytes


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node with nothing on it, as the cache keeps it."""

    uid: str
    empty: NodeView


def cached_node(manifest: Mapping[str, Any]) -> CachedNode:
    """Reads a node; free is all of allocatable until the pods are subtracted."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    allocatable = status.get("allocatable") or {}
    cpu, memory = cpu_milli(allocatable.get("cpu")), memory_bytes(allocatable.get("memory"))
    ready, since = _readiness(status)
    view = NodeView(
        name=metadata["name"],
        ready=ready,
        unschedulable=bool(spec.get("unschedulable")),
        spot=labels.get(LABEL_SPOT) == "true",
        taints=tuple(_taint(taint) for taint in spec.get("taints") or ()),
        labels=labels,
        cpu_milli_allocatable=cpu,
        cpu_milli_free=cpu,
        memory_bytes_allocatable=memory,
        memory_bytes_free=memory,
        not_ready_since=None if ready else since or _time(metadata.get("creationTimestamp")),
    )
    return CachedNode(metadata["uid"], view)


def with_pods(node: CachedNode, cpu_milli_used: int, memory_bytes_used: int) -> NodeView:
    """The node as decisions see it. Never below 0: a full node is just full."""
    return replace(
        node.empty,
        cpu_milli_free=max(0, node.empty.cpu_milli_allocatable - cpu_milli_used),
        memory_bytes_free=max(0, node.empty.memory_bytes_allocatable - memory_bytes_used),
    )


def _taint(taint: Mapping[str, Any]) -> Taint:
    return Taint(taint["key"], taint.get("effect", ""), taint.get("value") or "")


def _readiness(status: Mapping[str, Any]) -> tuple[bool, datetime | None]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            return condition.get("status") == "True", _time(condition.get("lastTransitionTime"))
    return False, None


def _time(text: object) -> datetime | None:
    return parse_time(text) if isinstance(text, str) else None
