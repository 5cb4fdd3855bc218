"""What a pod requests of its node, as kube-scheduler counts it.

One rule covers templates and pods.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import add
from typing import Any, NamedTuple, cast

from gpujob_api.quantities import AMOUNT_MAX, quantity

# Amounts of resources other than CPU and memory, in order of their names. Storage is in bytes.
OtherRequests = tuple[tuple[str, int], ...]
_COUNTED = ("cpu", "memory")

# Requested CPU in thousandths of a core and memory in bytes. None: not mentioned.
_Amounts = tuple[int | None, int | None]
_NOTHING: _Amounts = (None, None)
_PER_CORE = 1000


class Unreadable(ValueError):  # noqa: N818 - it is an answer, not a fault of the program
    """A part of a pod's spec that says nothing about its requests."""


class PodRequests(NamedTuple):
    cpu_milli: int = 0
    memory_bytes: int = 0


# The requests of a pod that cannot be read: all that its node has. A lower guess would make the
# node look emptier than it may be. The harm is limited to this node and ends with the pod.
WHOLE_NODE = PodRequests(AMOUNT_MAX, AMOUNT_MAX)


def pod_requests(spec: Mapping[str, Any]) -> PodRequests:
    """Returns what kube-scheduler counts for a pod of this spec.

    That is the larger of what runs at once and what any step of starting takes, unless the pod
    itself states its requests (`spec.resources`). The overhead is added. A pod with any part that
    cannot be read counts as `WHOLE_NODE`. Never raises.
    """
    try:
        cpu, memory = _of_pod(spec)
    except Unreadable:
        return WHOLE_NODE
    return PodRequests(min(cpu or 0, AMOUNT_MAX), min(memory or 0, AMOUNT_MAX))


def other_requests(spec: Mapping[str, Any]) -> OtherRequests:
    """Returns what a pod of this spec requests of resources other than CPU and memory.

    Examples are `rdma/hca`, `hugepages-2Mi` and `ephemeral-storage`. Parts that cannot be read
    request nothing. Never raises.
    """
    running, largest_step = Counter[str](), Counter[str]()
    for name in ("containers", "initContainers"):
        listed = spec.get(name)
        for one in cast("list[object]", listed) if isinstance(listed, list) else ():
            asked = _others(one)
            starts_others = name == "initContainers" and not _is_sidecar(one)
            running, largest_step = (
                (running, largest_step | asked)
                if starts_others
                else (running + asked, largest_step)
            )
    return tuple(sorted((running | largest_step).items()))


def _others(container: object) -> Counter[str]:
    """Returns what a container requests. A limit without a request is a request."""
    found = Counter[str]()
    try:
        resources = _object(_object(container).get("resources"))
        amounts = {**_object(resources.get("limits")), **_object(resources.get("requests"))}
    except Unreadable:
        return found
    for name, asked in amounts.items():
        amount = quantity(asked) if name not in _COUNTED else None
        if amount:
            found[name] = amount
    return found


def _is_sidecar(container: object) -> bool:
    return isinstance(container, Mapping) and container.get("restartPolicy") == "Always"


def requests_while_resized(spec: Mapping[str, Any], status: Mapping[str, Any]) -> PodRequests:
    """Returns the same for a pod that a kubelet runs.

    While its resources are changed in place, each container counts with the largest of its
    requests, its allocation and what it still has, as in kube-scheduler. The requests do not count
    while the kubelet calls the change infeasible: it will not be made, and the pod may ask for more
    than any node has.
    """
    asked = pod_requests(spec)
    held = _held_by_name(status)
    if not held or asked == WHOLE_NODE:
        return asked
    infeasible = _is_infeasible(status)
    seen = {
        part: [
            # An init container that ends is never resized.
            _holding(one, held, infeasible) if part == "containers" or _is_sidecar(one) else one
            for one in _containers(spec.get(part))
        ]
        for part in ("containers", "initContainers")
    }
    return pod_requests({**spec, **seen})


def _held_by_name(status: Mapping[str, Any]) -> dict[str, _Amounts]:
    """Returns the larger of what each container was allocated and what it still has, if its
    kubelet reports it readably. A container that shrinks was allocated the lower amount already.
    """
    found: dict[str, _Amounts] = {}
    try:
        for part in ("containerStatuses", "initContainerStatuses"):
            for one in _containers(status.get(part)):
                allocated, actual = one.get("allocatedResources"), one.get("resources")
                if allocated is None and actual is None:
                    continue
                has = _amounts(_object(actual).get("requests"))
                found[str(one.get("name"))] = _larger(_amounts(allocated), has)
    except Unreadable:
        return {}
    return found


def _is_infeasible(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions")
    return isinstance(conditions, list) and any(
        isinstance(one, Mapping)
        and one.get("type") == "PodResizePending"
        and one.get("reason") == "Infeasible"
        for one in cast("list[object]", conditions)
    )


def _holding(
    container: Mapping[str, Any], held: Mapping[str, _Amounts], infeasible: bool
) -> Mapping[str, Any]:
    """Returns the container with the requests that count."""
    has = held.get(str(container.get("name")))
    if has is None:
        return container
    cpu, memory = has if infeasible else _larger(_of_container(container), has)
    requests = {"cpu": None if cpu is None else f"{cpu}m", "memory": memory}
    return {**container, "resources": {"requests": requests}}


# Most pods have one container and nothing else, and thousands are read at once. Absent fields are
# therefore skipped.
def _of_pod(spec: Mapping[str, Any]) -> _Amounts:
    """The pod's own requests come first. Its limits count if no container requests anything."""
    asked = _of_containers(spec)
    if spec.get("resources") is not None:
        resources = _object(spec["resources"])
        stated, limits = _amounts(resources.get("requests")), _amounts(resources.get("limits"))
        asked = _first(_first(stated, asked), limits)
    return _sum(asked, _amounts(spec["overhead"])) if spec.get("overhead") is not None else asked


def _of_containers(spec: Mapping[str, Any]) -> _Amounts:
    """Sidecars (init containers that are restarted) keep running. They count together with the
    containers, and with each init container after them.
    """
    running, sidecars, largest_step = _NOTHING, _NOTHING, _NOTHING
    for container in _containers(spec.get("containers")):
        running = _sum(running, _of_container(container))
    if spec.get("initContainers") is None:
        return running
    for container in _containers(spec["initContainers"]):
        asked = _of_container(container)
        step = _sum(sidecars, asked)
        if container.get("restartPolicy") == "Always":
            sidecars, running = step, _sum(running, asked)
        largest_step = _larger(largest_step, step)
    return _larger(running, largest_step)


def _of_container(container: Mapping[str, Any]) -> _Amounts:
    """A limit without a request counts as a request of the same size."""
    resources = _object(container.get("resources"))
    requests = _amounts(resources.get("requests"))
    if resources.get("limits") is None:
        return requests
    return _first(requests, _amounts(resources["limits"]))


def _amounts(asked: object) -> _Amounts:
    named = _object(asked)
    if not named:
        return _NOTHING
    return _amount(named.get("cpu"), _PER_CORE), _amount(named.get("memory"), 1)


def _amount(asked: object, per_unit: int) -> int | None:
    if asked is None:
        return None
    amount = quantity(asked, per_unit)
    if amount is None:
        raise Unreadable
    return amount


def _first(one: _Amounts, other: _Amounts) -> _Amounts:
    return _joined(lambda amount, _: amount, one, other)


def _sum(one: _Amounts, other: _Amounts) -> _Amounts:
    return _joined(add, one, other)


def _larger(one: _Amounts, other: _Amounts) -> _Amounts:
    return _joined(max, one, other)


def _joined(join: Callable[[int, int], int], one: _Amounts, other: _Amounts) -> _Amounts:
    """Joins two amounts. A resource that only one of them mentions is taken from that one."""
    if one is _NOTHING or other is _NOTHING:
        return other if one is _NOTHING else one
    cpu = one[0] if other[0] is None else other[0] if one[0] is None else join(one[0], other[0])
    memory = one[1] if other[1] is None else other[1] if one[1] is None else join(one[1], other[1])
    return cpu, memory


def _containers(value: object) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable
    return [_object(one) for one in cast("list[object]", value)]


def _object(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    # A template is made of dicts, and the test for a mapping takes twice as long.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise Unreadable
    return cast("Mapping[str, Any]", value)
