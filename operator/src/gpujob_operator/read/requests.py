"""Kubernetes quantities and what a pod asks of its node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_QUANTITY = re.compile(
    r"^([+-]?[0-9]{0,18}(?:\.[0-9]{0,18})?)(m|u|n|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$"
)
_SCALES = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{suffix: 1000.0 ** (n + 1) for n, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": 1024.0 ** (n + 1) for n, suffix in enumerate("KMGTPE")},
}


@dataclass(frozen=True, slots=True)
class PodRequests:
    cpu_milli: int = 0
    memory_bytes: int = 0


def quantity(text: object) -> float:
    """The number that a Kubernetes quantity means: 250m is 0.25, 1Ki is 1024; 0 if unreadable.

    The API server validates quantities; what is unreadable here can only be absent.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[1] in ("", "+", "-", "."):
        return 0.0
    suffix = match[2] or ""
    if suffix in _SCALES:
        return float(match[1]) * _SCALES[suffix]
    return float(match[1] + suffix)


def cpu_milli(text: object) -> int:
    return round(quantity(text) * 1000)


def memory_bytes(text: object) -> int:
    return round(quantity(text))


def pod_requests(spec: Mapping[str, Any]) -> PodRequests:
    """What the scheduler counts: the containers together, or one init container if that is more."""
    running = [_requests(container) for container in spec.get("containers") or ()]
    sidecars = [
        _requests(container)
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    ]
    starting = [_requests(container) for container in spec.get("initContainers") or ()]
    total = _sum([*running, *sidecars])
    overhead = PodRequests(
        cpu_milli((spec.get("overhead") or {}).get("cpu")),
        memory_bytes((spec.get("overhead") or {}).get("memory")),
    )
    return PodRequests(
        max([total.cpu_milli, *(one.cpu_milli for one in starting)]) + overhead.cpu_milli,
        max([total.memory_bytes, *(one.memory_bytes for one in starting)]) + overhead.memory_bytes,
    )


def _requests(container: Mapping[str, Any]) -> PodRequests:
    resources = container.get("resources") or {}
    # A limit without a request is a request of the same size.
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return PodRequests(cpu_milli(asked.get("cpu")), memory_bytes(asked.get("memory")))


def _sum(parts: list[PodRequests]) -> PodRequests:
    return PodRequests(
        sum(part.cpu_milli for part in parts), sum(part.memory_bytes for part in parts)
    )
