"""Kubernetes quantities, and the resources that a pod requests from its node."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpujob_operator.read.shapes import mapping

_QUANTITY = re.compile(
    r"([+-]?[0-9]{0,18}(?:\.[0-9]{0,18})?)(m|u|n|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?"
)
_SCALES = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{suffix: 1000.0 ** (n + 1) for n, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": 1024.0 ** (n + 1) for n, suffix in enumerate("KMGTPE")},
}
# More than any node has, and still exact in sums and differences.
AMOUNT_MAX = 2**60


class Unreadable(ValueError):  # noqa: N818 - it is an answer, not a fault of the program
    """A part of a pod's spec from which no request can be read."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    cpu_milli: int = 0
    memory_bytes: int = 0


# The requests of a pod whose requests cannot be read: all that its node has. Less would make the
# node look emptier than it may be. The effect is limited to this node and ends with the pod.
WHOLE_NODE = PodRequests(AMOUNT_MAX, AMOUNT_MAX)


def quantity(value: object) -> float | None:
    """The number of a Kubernetes quantity: 250m is 0.25, 1Ki is 1024. 0 if absent; None if
    unreadable.
    """
    if value is None:
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_amount = 0 <= value <= AMOUNT_MAX
        return float(value) if is_amount else None
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] in ("", "+", "-", "."):
        return None
    suffix = match[2] or ""
    scaled = float(match[1]) * _SCALES[suffix] if suffix in _SCALES else float(match[1] + suffix)
    return min(scaled, float(AMOUNT_MAX)) if scaled >= 0 else None


def cpu_milli(value: object) -> int | None:
    """CPU in thousandths of a core, rounded up as in Kubernetes; None if unreadable."""
    amount = quantity(value)
    return None if amount is None else min(AMOUNT_MAX, math.ceil(round(amount * 1000, 6)))


def memory_bytes(value: object) -> int | None:
    amount = quantity(value)
    return None if amount is None else math.ceil(amount)


def pod_requests(spec: Mapping[str, Any]) -> PodRequests:
    """What kube-scheduler counts: the sum of the containers, or one init container if that is more.

    A pod with an unreadable part counts as `WHOLE_NODE`. Never raises.
    """
    try:
        return _pod_requests(spec)
    except Unreadable:
        return WHOLE_NODE


def _pod_requests(spec: Mapping[str, Any]) -> PodRequests:
    running = [_requests(container) for container in _containers(spec.get("containers"))]
    starting_containers = _containers(spec.get("initContainers"))
    sidecars = [
        _requests(container)
        for container in starting_containers
        if container.get("restartPolicy") == "Always"
    ]
    starting = [_requests(container) for container in starting_containers]
    total = _sum([*running, *sidecars])
    overhead = _amounts(_object(spec.get("overhead")))
    return PodRequests(
        max([total.cpu_milli, *(one.cpu_milli for one in starting)]) + overhead.cpu_milli,
        max([total.memory_bytes, *(one.memory_bytes for one in starting)]) + overhead.memory_bytes,
    )


def _requests(container: Mapping[str, Any]) -> PodRequests:
    resources = _object(container.get("resources"))
    # A limit without a request implies a request of the same size.
    return _amounts({**_object(resources.get("limits")), **_object(resources.get("requests"))})


def _amounts(asked: Mapping[str, Any]) -> PodRequests:
    cpu, memory = cpu_milli(asked.get("cpu")), memory_bytes(asked.get("memory"))
    if cpu is None or memory is None:
        raise Unreadable
    return PodRequests(cpu, memory)


def _containers(value: object) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable
    return [_object(one) for one in cast("list[object]", value)]


def _object(value: object) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise Unreadable
    return mapping(value)


def _sum(parts: list[PodRequests]) -> PodRequests:
    return PodRequests(
        sum(part.cpu_milli for part in parts), sum(part.memory_bytes for part in parts)
    )
