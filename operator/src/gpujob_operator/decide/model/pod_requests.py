"""What a pod asks of its node, as kube-scheduler counts it: one rule for templates and for pods."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from gpujob_api.quantities import AMOUNT_MAX, quantity

_RESOURCES = ("cpu", "memory")
# In thousandths of a core, and in bytes.
_PER_UNIT = {"cpu": 1000, "memory": 1}
# What each resource is asked for; a resource that nobody mentions is absent.
_Amounts = dict[str, int]


class Unreadable(ValueError):  # noqa: N818 - it is an answer, not a fault of the program
    """A part of a pod's spec that says nothing about its requests."""


class PodRequests(NamedTuple):
    cpu_milli: int = 0
    memory_bytes: int = 0


# What a pod counts whose requests cannot be read: all that its node has. To guess less would make
# the node look emptier than it may be; the harm ends at this one node, and when the pod ends.
WHOLE_NODE = PodRequests(AMOUNT_MAX, AMOUNT_MAX)


def pod_requests(spec: Mapping[str, Any]) -> PodRequests:
    """What kube-scheduler counts for a pod of this spec.

    That is the larger of what runs at once and what any step of starting takes, unless the pod
    itself states its requests (`spec.resources`); then the overhead. A pod of which any part cannot
    be read counts `WHOLE_NODE`. Raises nothing.
    """
    try:
        asked = _of_pod(_object(spec.get("resources")), _of_containers(spec))
        overhead = _amounts(_object(spec.get("overhead")))
    except Unreadable:
        return WHOLE_NODE
    cpu, memory = (asked.get(name, 0) + overhead.get(name, 0) for name in _RESOURCES)
    return PodRequests(min(cpu, AMOUNT_MAX), min(memory, AMOUNT_MAX))


def _of_containers(spec: Mapping[str, Any]) -> _Amounts:
    """Sidecars (init containers that are restarted) run on: they count beside the containers, and
    beside each init container after them."""
    running, sidecars, largest_step = _Amounts(), _Amounts(), _Amounts()
    for container in _containers(spec.get("containers")):
        running = _sum(running, _of_container(container))
    for container in _containers(spec.get("initContainers")):
        asked = _of_container(container)
        step = _sum(sidecars, asked)
        if container.get("restartPolicy") == "Always":
            sidecars, running = step, _sum(running, asked)
        largest_step = _larger(largest_step, step)
    return _larger(running, largest_step)


def _of_pod(resources: Mapping[str, Any], of_containers: _Amounts) -> _Amounts:
    """What the pod states for itself comes first; its limits count where no container asks."""
    stated, limits = _amounts(_part(resources, "requests")), _amounts(_part(resources, "limits"))
    return {**limits, **of_containers, **stated}


def _of_container(container: Mapping[str, Any]) -> _Amounts:
    """A limit without a request is a request of the same size."""
    resources = _object(container.get("resources"))
    return {**_amounts(_part(resources, "limits")), **_amounts(_part(resources, "requests"))}


def _amounts(asked: Mapping[str, Any]) -> _Amounts:
    found = _Amounts()
    for name in _RESOURCES:
        if asked.get(name) is None:
            continue
        amount = quantity(asked[name], _PER_UNIT[name])
        if amount is None:
            raise Unreadable
        found[name] = amount
    return found


def _sum(one: _Amounts, other: _Amounts) -> _Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def _larger(one: _Amounts, other: _Amounts) -> _Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _containers(value: object) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable
    return [_object(one) for one in cast("list[object]", value)]


def _part(resources: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _object(resources.get(name))


def _object(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Unreadable
    return cast("Mapping[str, Any]", value)
