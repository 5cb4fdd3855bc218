"""Nodes and GPUs: what is free on each, after the driver, strangers and reservations (I1).

`usage` fills them in from what was observed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpujob_api.gpujob import GPUJob, GPUJobStatus, ReservationSource
from gpujob_api.quantities import MIB
from gpujob_operator.decide.capacity.availability import GPUBlocked, NodeClosed
from gpujob_operator.decide.capacity.slowdown_law import PUBLISHED_SLOWDOWNS, Law
from gpujob_operator.decide.model.snapshot import NodeView

# A stranger below this is the desktop or a monitoring tool, not a tenant.
EXTERNAL_NOISE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that holds part of a GPU. `excess_bytes` is measured use above what it holds."""

    job_uid: str
    memory_bytes: int
    utilization_percent: float
    whole_gpu: bool
    max_slowdown_percent: int
    excess_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GPUCapacity:
    """One usable GPU. `external_bytes` is measured memory of nobody's GPUJob."""

    uuid: str
    model: str
    total_bytes: int
    driver_bytes: int
    external_bytes: int
    tenants: tuple[Tenant, ...] = ()
    blocked: GPUBlocked | None = None
    # Of `external_bytes`, what was still seen of pods that have finished since. It counts until it
    # is seen to be gone (I1), and is no reason to interrupt anybody.
    terminating_bytes: int = 0
    # GPUs of a node with the same number are close together.
    link_group: int = 0
    # How much tenants slow each other on this model (see `calibration`).
    law: Law = PUBLISHED_SLOWDOWNS

    @property
    def reserved_bytes(self) -> int:
        return sum(tenant.memory_bytes for tenant in self.tenants)

    @property
    def excess_bytes(self) -> int:
        return sum(tenant.excess_bytes for tenant in self.tenants)

    @property
    def free_bytes(self) -> int:
        """May be negative when a stranger or a leak took more than was left."""
        free_bytes = self.total_bytes - self.driver_bytes - self.external_bytes
        for tenant in self.tenants:
            free_bytes -= tenant.memory_bytes + tenant.excess_bytes
        return free_bytes

    @property
    def usable_bytes(self) -> int:
        """What our jobs together can have: all but the driver's and strangers' memory."""
        return self.total_bytes - self.driver_bytes - self.external_bytes

    @property
    def usable_after_release_bytes(self) -> int:
        """The same once another reading has come."""
        return self.usable_bytes + self.terminating_bytes

    @property
    def utilization_percent(self) -> float:
        return sum(tenant.utilization_percent for tenant in self.tenants)

    @property
    def held_whole(self) -> bool:
        return any(tenant.whole_gpu for tenant in self.tenants)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One node of ours: its GPUs and what is left of CPU and memory after assumed pods."""

    node: NodeView
    price_per_gpu_hour: float | None
    gpus: tuple[GPUCapacity, ...]
    cpu_milli_free: int
    memory_bytes_free: int
    # Why nothing new may be placed here, or None.
    closed: NodeClosed | None = None
    # How often such a node is taken away, and the price with what that costs (see `prices`).
    interruptions_per_hour: float = 0.0
    price_with_losses: float | None = None

    def gpu(self, uuid: str) -> GPUCapacity | None:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        return None


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """GPUs and GPU memory in all."""

    gpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """All nodes by name, in stable order."""

    nodes: Mapping[str, NodeCapacity] = field(default_factory=dict[str, NodeCapacity])
    # What a job can have at most of an empty GPU, by model.
    largest: Mapping[str, int] = field(default_factory=dict[str, int])
    # Laws of slowdown that were measured, by model.
    laws: Mapping[str, Law] = field(default_factory=dict[str, Law])
    # All GPUs there are, whoever uses them.
    size: ClusterSize = ClusterSize(0, 0)

    def gpu(self, node_name: str, uuid: str) -> GPUCapacity | None:
        node = self.nodes.get(node_name)
        return node.gpu(uuid) if node is not None else None

    def gpus_of(self, status: GPUJobStatus) -> list[GPUCapacity]:
        """The GPUs that a job of this status is on, as far as they are there."""
        workers = status.placement.workers if status.placement is not None else ()
        named = ((worker.node, uuid) for worker in workers for uuid in worker.gpus)
        return [gpu for node, uuid in named if (gpu := self.gpu(node, uuid)) is not None]

    def models(self, accepted: Collection[str]) -> list[str]:
        """GPU models that there are and that a job accepts; it accepts any if it names none."""
        return sorted(model for model in self.largest if not accepted or model in accepted)

    def law(self, model: str) -> Law:
        return self.laws.get(model, PUBLISHED_SLOWDOWNS)

    def largest_bytes(self, model: str) -> int:
        """What a job can have at most of an empty GPU of this model."""
        return self.largest.get(model, 0)


def capacity_of(
    nodes: Mapping[str, NodeCapacity], laws: Mapping[str, Law] | None = None
) -> Capacity:
    """The ledger of these nodes."""
    largest: dict[str, int] = {}
    gpus = total_bytes = 0
    for node in nodes.values():
        for model, size_bytes, driver_bytes in sizes(node):
            gpus, total_bytes = gpus + 1, total_bytes + size_bytes
            largest[model] = max(largest.get(model, 0), size_bytes - driver_bytes)
    ordered = {name: nodes[name] for name in sorted(nodes)}
    return Capacity(ordered, largest, laws or {}, ClusterSize(gpus, total_bytes))


def sizes(node: NodeCapacity) -> tuple[tuple[str, int, int], ...]:
    """Of each GPU its model, its memory and what the driver keeps of that, in bytes."""
    return tuple((gpu.model, gpu.total_bytes, gpu.driver_bytes) for gpu in node.gpus)


def holds_gpus(job: GPUJob) -> bool:
    """True while an attempt of the job is not proven finished. Of a job that is being deleted, its
    pods alone tell (see `usage`)."""
    leaves = job.metadata.deletion_timestamp is not None
    return job.status.placement is not None and not job.finished and not leaves


def as_tenant(job: GPUJob) -> Tenant | None:
    reservation = job.status.reservation
    if reservation is None:
        return None
    whole = reservation.exclusive or reservation.source is ReservationSource.WHOLE_GPU
    return Tenant(
        job_uid=job.metadata.uid,
        memory_bytes=reservation.memory_bytes,
        utilization_percent=reservation.utilization_percent,
        whole_gpu=whole,
        max_slowdown_percent=job.spec.sharing.max_slowdown_percent,
    )


def has_external_use(gpu: GPUCapacity, *, soon: bool = False) -> bool:
    """True when a stranger uses more of the GPU than noise; with `soon`, once another reading has
    come."""
    external_bytes = gpu.external_bytes - gpu.terminating_bytes if soon else gpu.external_bytes
    return external_bytes > EXTERNAL_NOISE_BYTES
