"""The requests and tolerations of a job's pod template."""

import re
from collections.abc import Mapping
from typing import Any

from gpujob_api.gpujob import GPUJob

_CPU = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(m?)$")
_MEMORY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([A-Za-z]{0,2})$")
_UNITS = {
    "m": 0.001,
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
}
# CPU in thousandths of a core and memory in bytes.
HostRequests = tuple[int, int]
# GPU nodes often have this taint to keep other pods away.
DEFAULT_TOLERATIONS: tuple[Mapping[str, str], ...] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)


def pod_spec(job: GPUJob) -> Mapping[str, Any]:
    return job.spec.template.get("spec") or {}


def tolerations(job: GPUJob) -> tuple[Mapping[str, Any], ...]:
    return (*(pod_spec(job).get("tolerations") or ()), *DEFAULT_TOLERATIONS)


def cpu_milli(quantity: object) -> int:
    """A Kubernetes CPU quantity (2, 0.5, "250m") in thousandths of a core; 0 when unreadable."""
    match = _CPU.match(str(quantity))
    if match is None:
        return 0
    return round(float(match[1]) * (1 if match[2] else 1000))


def memory_bytes(quantity: object) -> int:
    """A Kubernetes memory quantity ("2Gi", "128M", 1000) in bytes; 0 when unreadable."""
    match = _MEMORY.match(str(quantity))
    if match is None or match[2] not in _UNITS:
        return 0
    return round(float(match[1]) * _UNITS[match[2]])


def host_requests(job: GPUJob) -> HostRequests:
    """CPU (milli) and host memory (bytes) that one worker pod requests."""
    cpu = memory = 0
    for container in pod_spec(job).get("containers") or ():
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        cpu += cpu_milli(wanted.get("cpu", 0))
        memory += memory_bytes(wanted.get("memory", 0))
    return cpu, memory
