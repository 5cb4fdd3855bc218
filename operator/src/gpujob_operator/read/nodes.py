"""Reads Node manifests, and subtracts the requests of the pods bound to them, into `NodeView`."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from gpujob_api.meta import LABEL_MANAGED
from gpujob_api.quantities import quantity
from gpujob_operator.decide.model.notices import CONDITION_TYPES, READY_CONDITION
from gpujob_operator.decide.model.snapshot import (
    PODS_UNLIMITED,
    NodeCondition,
    NodeView,
    Taint,
)
from gpujob_operator.read.shapes import mapping, mappings, moment, readable_metadata, text
from gpujob_operator.read.spot_labels import is_spot

_CONDITIONS_MAX = 16
_MESSAGE_CHARACTERS_MAX = 1024


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node without pods, as the cache stores it."""

    uid: str
    empty: NodeView


def cached_node(manifest: Mapping[str, Any]) -> CachedNode:
    """Reads a node. All of its allocatable resources are free until pods are subtracted.

    An unreadable amount counts as zero, and an absent number of pods as no limit. Nothing is placed
    on a node whose taints cannot be read.
    Raises `FieldError` for a node without a UID or a name.
    """
    metadata, spec = readable_metadata(manifest), mapping(manifest.get("spec"))
    status = mapping(manifest.get("status"))
    labels: Mapping[str, str] = metadata["labels"]
    allocatable = mapping(status.get("allocatable"))
    cpu = quantity(allocatable.get("cpu"), 1000) or 0
    memory = quantity(allocatable.get("memory")) or 0
    pods = quantity(allocatable.get("pods")) or 0 if "pods" in allocatable else PODS_UNLIMITED
    ready, since = _readiness(status)
    taints = _taints(spec.get("taints"))
    view = NodeView(
        name=metadata["name"],
        ready=ready,
        unschedulable=bool(spec.get("unschedulable")) or taints is None,
        spot=is_spot(labels),
        taints=taints or (),
        labels=labels,
        cpu_milli_allocatable=cpu,
        cpu_milli_free=cpu,
        memory_bytes_allocatable=memory,
        memory_bytes_free=memory,
        pods_allocatable=pods,
        pods_free=pods,
        others_allocatable=_others(allocatable),
        not_ready_since=None if ready else since or moment(metadata.get("creationTimestamp")),
        conditions=_conditions(status),
        deletion_at=moment(metadata.get("deletionTimestamp")),
        managed=labels.get(LABEL_MANAGED) == "true",
    )
    return CachedNode(metadata["uid"], view)


def counts(node: CachedNode, used: Container[str]) -> bool:
    """Returns whether the node is part of a snapshot. `used` are the names of nodes with attempts.

    A node that loses its label is still there, and so is what runs on it.
    """
    return node.empty.managed or node.empty.name in used


def with_pods(node: CachedNode, pods: int, cpu_milli_used: int, memory_bytes_used: int) -> NodeView:
    """Returns the node minus this number of pods and their requests. Never below 0."""
    return replace(
        node.empty,
        cpu_milli_free=max(0, node.empty.cpu_milli_allocatable - cpu_milli_used),
        memory_bytes_free=max(0, node.empty.memory_bytes_allocatable - memory_bytes_used),
        pods_free=max(0, node.empty.pods_allocatable - pods),
    )


def _others(allocatable: Mapping[str, Any]) -> dict[str, int]:
    """Returns what the node has of resources other than CPU, memory and pods."""
    amounts = {
        name: quantity(amount)
        for name, amount in allocatable.items()
        if name not in ("cpu", "memory", "pods")
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _taints(value: object) -> tuple[Taint, ...] | None:
    """Returns the taints, or None if any of them cannot be read."""
    listed = [] if value is None else value
    entries = mappings(listed)
    if not isinstance(listed, list) or len(entries) != len(cast("list[object]", listed)):
        return None
    taints = tuple(
        Taint(text(one.get("key")), text(one.get("effect")), text(one.get("value")))
        for one in entries
    )
    return taints if all(taint.key for taint in taints) else None


def _conditions(status: Mapping[str, Any]) -> tuple[NodeCondition, ...]:
    """Returns the conditions that may announce the node's end. Others change all the time."""
    found: list[NodeCondition] = []
    for condition in mappings(status.get("conditions")):
        kind = text(condition.get("type"))
        wrong = "False" if kind == READY_CONDITION else "True"
        if kind in CONDITION_TYPES and condition.get("status") == wrong:
            message = text(condition.get("message"))[:_MESSAGE_CHARACTERS_MAX]
            found.append(NodeCondition(kind, message))
    return tuple(found[:_CONDITIONS_MAX])


def _readiness(status: Mapping[str, Any]) -> tuple[bool, datetime | None]:
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == "Ready":
            return condition.get("status") == "True", moment(condition.get("lastTransitionTime"))
    return False, None
