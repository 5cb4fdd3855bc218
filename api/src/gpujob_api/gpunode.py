"""GPUNode: an agent's measurements of one node's GPUs. Cluster-scoped, with the node's name."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from gpujob_api.bounds import (
    FRACTION_MAX,
    GPU_MEMORY_BYTES_MAX,
    GPUUUID,
    Count,
    GPUMemoryBytes,
    Items,
    Message,
    Percent,
    Range,
    SmallCount,
    Text,
    Version,
)
from gpujob_api.codec import FieldError, check
from gpujob_api.meta import Conditions, Metadata
from gpujob_api.quantities import format_memory, is_gpu_uuid

# Prefix of the health message of a GPU whose state is not known, as opposed to one that is sick.
UNREADABLE = "not readable"
# Maximum seconds between writes of a status. It is for people only, because the operator gets the
# readings.
STATUS_SECONDS_MAX = 300.0
GPUS_MAX = 64
PROCESSES_MAX = 256
XIDS_MAX = 8


@dataclass(frozen=True, slots=True)
class GPUProcess:
    """A process on a GPU. `pod_uid` is None for an unmanaged process, which belongs to no pod."""

    pid: SmallCount
    memory_bytes: GPUMemoryBytes
    pod_uid: Annotated[str, Text(64)] | None = None
    utilization_percent: Percent | None = None
    # The driver does not report this process's memory, so `memory_bytes` is its share of the rest.
    memory_estimated: bool = False


@dataclass(frozen=True, slots=True)
class XIDEvent:
    """An error that the driver reported.

    `pod_uid` is that of the pod whose program caused it, if known because the pod was alone on the
    GPU.
    """

    xid: SmallCount
    at: datetime
    pod_uid: Annotated[str, Text(64)] | None = None


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU as measured. `memory_reserved_bytes` is reserved by the driver."""

    uuid: GPUUUID
    index: Annotated[int, Range(0, 1023)]
    model: Annotated[str, Text(128, characters_min=1)]
    memory_total_bytes: Annotated[int, Range(1, GPU_MEMORY_BYTES_MAX)]
    memory_used_bytes: GPUMemoryBytes
    memory_reserved_bytes: GPUMemoryBytes = 0
    utilization_percent: Percent = 0.0
    power_watts: Annotated[float, Range(0, 100_000)] | None = None
    energy_joules: Annotated[float, Range(0, FRACTION_MAX)] | None = None
    temperature_celsius: Annotated[float, Range(-273, 1000)] | None = None
    healthy: bool = True
    health_message: Message = ""
    # GPUs with the same number are close together, by NVLink or in one NUMA node.
    link_group: Annotated[int, Range(0, 1023)] = 0
    processes: Annotated[tuple[GPUProcess, ...], Items(PROCESSES_MAX, clip=True)] = ()
    # Errors that still matter, the oldest first; see the agent's `xids`.
    xids: Annotated[tuple[XIDEvent, ...], Items(XIDS_MAX)] = ()

    def __post_init__(self) -> None:
        if not is_gpu_uuid(self.uuid):
            raise FieldError("uuid", f"must look like GPU-...; got {self.uuid!r}")
        if self.memory_total_bytes <= 0:
            raise FieldError("memoryTotalBytes", f"must be above 0; got {self.memory_total_bytes}")
        if not 0 <= self.memory_used_bytes <= self.memory_total_bytes:
            raise FieldError(
                "memoryUsedBytes",
                f"must be from 0 to {self.memory_total_bytes}; got {self.memory_used_bytes}",
            )
        if not 0 <= self.utilization_percent <= 100:
            raise FieldError("utilizationPercent", f"got {self.utilization_percent}")


@dataclass(frozen=True, slots=True)
class GPUNodeSpec:
    """Settings by people: a price per GPU, or no new jobs on this node."""

    price_per_gpu_hour: Annotated[float, Range(0, 1_000_000)] | None = None
    unschedulable: bool = False

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GPUNodeSummary:
    """The texts of the printer columns."""

    gpus: Annotated[str, Text(128, clip=True)] = ""
    memory: Annotated[str, Text(64, clip=True)] = ""
    utilization: Annotated[str, Text(128, clip=True)] = ""


def summarize(gpus: Iterable[GPU]) -> GPUNodeSummary:
    """Returns the GPUs and their use for people: `2 x H100`, `3.1 GiB of 160 GiB`, `5-90 %`."""
    gpus = tuple(gpus)
    if not gpus:
        return GPUNodeSummary(gpus="0")
    models = Counter(gpu.model for gpu in gpus)
    used = sum(gpu.memory_used_bytes for gpu in gpus)
    total = sum(gpu.memory_total_bytes for gpu in gpus)
    utilizations = [round(gpu.utilization_percent) for gpu in gpus]
    low, high = min(utilizations), max(utilizations)
    return GPUNodeSummary(
        gpus=", ".join(f"{count} x {model}" for model, count in models.items()),
        memory=f"{format_memory(used)} of {format_memory(total)}",
        utilization=f"{low} %" if low == high else f"{low}-{high} %",
    )


@dataclass(frozen=True, slots=True)
class GPUNodeStatus:
    observed_at: datetime | None = None
    observed_generation: Count = 0
    agent_version: Version = ""
    driver_version: Version = ""
    sample_interval_seconds: Annotated[float, Range(0, 3600)] = 2.0
    gpus: Annotated[tuple[GPU, ...], Items(GPUS_MAX, keys=("uuid",))] = ()
    summary: GPUNodeSummary = field(default_factory=GPUNodeSummary)
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class GPUNode:
    metadata: Metadata
    spec: GPUNodeSpec = field(default_factory=GPUNodeSpec)
    status: GPUNodeStatus = field(default_factory=GPUNodeStatus)
