"""GPUQueue: a share of the cluster. Cluster-scoped; a job names its queue in `spec.queue`."""

from dataclasses import dataclass, field
from typing import Annotated

from gpujob_api.bounds import LABEL_PATTERN, Count, Items, Label, Range, Text
from gpujob_api.codec import FieldError, check
from gpujob_api.gpujob import PRIORITY_MAX
from gpujob_api.meta import Conditions, Metadata
from gpujob_api.quantities import FleetMemory

DEFAULT_QUEUE = "default"
NAMESPACES_MAX = 256


@dataclass(frozen=True, slots=True)
class Quota:
    """The guaranteed use of a queue. None means no limit."""

    gpus: Annotated[int, Range(0, 1_000_000)] | None = None
    gpu_memory: FleetMemory | None = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class PriorityRange:
    """The priorities that a queue permits. None means no bound."""

    minimum: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] | None = None
    maximum: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise FieldError(
                "minimum", f"must not be above maximum, {self.maximum}; got {self.minimum}"
            )


@dataclass(frozen=True, slots=True)
class GPUQueueSpec:
    """A queue. Jobs of `namespaces` may use it, or of any namespace if it is None.

    Queues of one `sharing_group` let their jobs share GPUs. If it is None, the queue is its own
    group.
    """

    weight: Annotated[int, Range(1, 1_000_000)] = 1
    parent: Label | None = None
    namespaces: Annotated[tuple[Label, ...], Items(NAMESPACES_MAX, unique=True)] | None = None
    priority: PriorityRange | None = None
    sharing_group: Label | None = None
    nominal: Quota = field(default_factory=Quota)
    borrowing_limit: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GPUQueueStatus:
    observed_generation: Count = 0
    pending_jobs: Count = 0
    running_jobs: Count = 0
    reserved_gpus: Count = 0
    reserved_memory_bytes: Count = 0
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class GPUQueue:
    metadata: Metadata
    spec: GPUQueueSpec = field(default_factory=GPUQueueSpec)
    status: GPUQueueStatus = field(default_factory=GPUQueueStatus)

    def __post_init__(self) -> None:
        problem = Text(63, LABEL_PATTERN, 1).problem(self.metadata.name)
        if problem is not None:
            raise FieldError("metadata.name", problem)
        if self.spec.parent == self.metadata.name:
            raise FieldError("spec.parent", f"must not be the queue itself, {self.spec.parent}")
