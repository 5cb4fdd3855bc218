"""GPUQueue: a share of the cluster. Cluster-scoped; a job names its queue in `spec.queue`."""

from dataclasses import dataclass, field

from gpujob_api.meta import Condition, Metadata
from gpujob_api.quantities import Memory

DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a queue may always use. None is no limit."""

    gpus: int | None = None
    gpu_memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class GPUQueueSpec:
    weight: int = 1
    parent: str | None = None
    nominal: Quota = field(default_factory=Quota)
    borrowing_limit: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True)
class GPUQueueStatus:
    observed_generation: int = 0
    pending_jobs: int = 0
    running_jobs: int = 0
    reserved_gpus: int = 0
    reserved_memory_bytes: int = 0
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GPUQueue:
    metadata: Metadata
    spec: GPUQueueSpec = field(default_factory=GPUQueueSpec)
    status: GPUQueueStatus = field(default_factory=GPUQueueStatus)
