"""GPUNode: what an agent measures on the cards of one node. Cluster-scoped, named as the node."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.codec import FieldError
from gpujob_api.meta import Condition, Metadata
from gpujob_api.quantities import is_gpu_uuid


@dataclass(frozen=True, slots=True)
class GPUProcess:
    """A process on a card. `pod_uid` is None for a stranger: nobody's pod."""

    pid: int
    memory_bytes: int
    pod_uid: str | None = None
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class GPU:
    """One card as measured. `memory_reserved_bytes` is what the driver keeps for itself."""

    uuid: str
    index: int
    model: str
    memory_total_bytes: int
    memory_used_bytes: int
    memory_reserved_bytes: int = 0
    utilization_percent: float = 0.0
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    healthy: bool = True
    health_message: str = ""
    processes: tuple[GPUProcess, ...] = ()

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
    """What people set: a price per card, or no new jobs here."""

    price_per_gpu_hour: float | None = None
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class GPUNodeStatus:
    observed_at: datetime | None = None
    observed_generation: int = 0
    agent_version: str = ""
    driver_version: str = ""
    sample_interval_seconds: float = 2.0
    gpus: tuple[GPU, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GPUNode:
    metadata: Metadata
    spec: GPUNodeSpec = field(default_factory=GPUNodeSpec)
    status: GPUNodeStatus = field(default_factory=GPUNodeStatus)
