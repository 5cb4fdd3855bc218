"""Nodes and GPUs with their free capacity, after the driver, unmanaged processes and reservations
(I1).

`usage` fills them in from observed objects.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob, GPUJobStatus, Reservation, SharingMode
from gpujob_operator.decide.capacity.availability import GPUBlocked, NodeClosed
from gpujob_operator.decide.capacity.model_names import accepted_models
from gpujob_operator.decide.capacity.slowdown_law import PUBLISHED_SLOWDOWNS, Law
from gpujob_operator.decide.model.held_gpus import EXTERNAL_NOISE_BYTES, is_whole_gpu
from gpujob_operator.decide.model.notices import NodeNotice
from gpujob_operator.decide.model.snapshot import PODS_UNLIMITED, NodeView
from gpujob_operator.decide.packing.party import ANYBODY, Party, common_party


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job with a reservation on a GPU.

    `excess_bytes` is its measured use above the reservation. At most `estimated_bytes` of that use
    come from the agent's estimate, and up to `context_bytes` may be contexts of its processes.
    """

    job_uid: str
    memory_bytes: int
    utilization_percent: float
    whole_gpu: bool
    max_slowdown_percent: int
    excess_bytes: int = 0
    # These are 0 without an excess.
    estimated_bytes: int = 0
    context_bytes: int = 0
    party: Party = ANYBODY


@dataclass(frozen=True, slots=True)
class GPUCapacity:
    """One usable GPU. `external_bytes` is measured memory that belongs to no GPUJob."""

    uuid: str
    model: str
    total_bytes: int
    driver_bytes: int
    external_bytes: int
    tenants: tuple[Tenant, ...] = ()
    blocked: GPUBlocked | None = None
    # The part of `external_bytes` that belongs to finished pods in the last reading. It counts
    # until a reading shows that it is gone (I1), and is no reason to preempt a job.
    terminating_bytes: int = 0
    # GPUs of a node with the same number are close together.
    link_group: int = 0
    # The slowdown law of this model (see `calibration`).
    law: Law = PUBLISHED_SLOWDOWNS
    # Free memory. Negative if unmanaged processes or a leak took more than was left. Summed up
    # once, because it is read thousands of times in a cycle.
    free_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        free_bytes = self.total_bytes - self.driver_bytes - self.external_bytes
        for tenant in self.tenants:
            free_bytes -= tenant.memory_bytes + tenant.excess_bytes
        object.__setattr__(self, "free_bytes", free_bytes)

    @property
    def reserved_bytes(self) -> int:
        return sum(tenant.memory_bytes for tenant in self.tenants)

    @property
    def excess_bytes(self) -> int:
        return sum(tenant.excess_bytes for tenant in self.tenants)

    @property
    def usable_bytes(self) -> int:
        """Memory that GPUJobs can use together: all except the driver's and unmanaged
        processes'.
        """
        return self.total_bytes - self.driver_bytes - self.external_bytes

    @property
    def usable_after_release_bytes(self) -> int:
        """`usable_bytes` after the next reading, without the memory of finished pods."""
        return self.usable_bytes + self.terminating_bytes

    @property
    def party(self) -> Party:
        """What all tenants have in common."""
        return common_party([tenant.party for tenant in self.tenants])

    @property
    def utilization_percent(self) -> float:
        return sum([tenant.utilization_percent for tenant in self.tenants])

    @property
    def held_whole(self) -> bool:
        for tenant in self.tenants:  # noqa: SIM110 - asked thousands of times a cycle
            if tenant.whole_gpu:
                return True
        return False


class HostUse(NamedTuple):
    """A number of pods, and CPU and memory of the host."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One managed node: its GPUs, and the CPU and memory that are free after assumed pods."""

    node: NodeView
    price_per_gpu_hour: float | None
    gpus: tuple[GPUCapacity, ...]
    cpu_milli_free: int
    memory_bytes_free: int
    # How many more pods the node takes.
    pods_free: int = PODS_UNLIMITED
    # What would be free without the jobs' pods. None: nothing is known of other pods.
    without_jobs: HostUse | None = None
    # Why nothing new may be placed here, or None.
    closed: NodeClosed | None = None
    # The sign that the node is about to go, or None.
    notice: NodeNotice | None = None
    # Expected interruptions per hour, and the price including their cost (see `prices`).
    interruptions_per_hour: float = 0.0
    price_with_losses: float | None = None

    def gpu(self, uuid: str) -> GPUCapacity | None:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        return None


# A cycle scans all GPUs at most this often for one purpose, however few GPUs there are.
SCANS_MAX = 64


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """The numbers of GPUs and of bytes of GPU memory in the cluster."""

    gpus: int
    memory_bytes: int

    def scans(self, gpus_max: int, least: int) -> int:
        """Returns how many scans of the cluster read at most `gpus_max` GPUs together.

        The result is at least `least` and at most `SCANS_MAX`.
        """
        return max(least, min(gpus_max // max(self.gpus, 1), SCANS_MAX))


@dataclass(frozen=True, slots=True)
class Capacity:
    """All nodes by name, in stable order."""

    nodes: Mapping[str, NodeCapacity] = field(default_factory=dict[str, NodeCapacity])
    # The most memory that a job can have of an idle GPU, by model.
    largest: Mapping[str, int] = field(default_factory=dict[str, int])
    # Calibrated slowdown laws, by model.
    laws: Mapping[str, Law] = field(default_factory=dict[str, Law])
    # All GPUs, whatever uses them.
    size: ClusterSize = ClusterSize(0, 0)

    def gpu(self, node_name: str, uuid: str) -> GPUCapacity | None:
        node = self.nodes.get(node_name)
        return node.gpu(uuid) if node is not None else None

    def gpus_of(self, status: GPUJobStatus) -> list[GPUCapacity]:
        """Returns the GPUs that a job of this status is on, without GPUs that are gone."""
        workers = status.placement.workers if status.placement is not None else ()
        named = ((worker.node, uuid) for worker in workers for uuid in worker.gpus)
        return [gpu for node, uuid in named if (gpu := self.gpu(node, uuid)) is not None]

    def models(self, accepted: Collection[str]) -> list[str]:
        """Returns the cluster's GPU models that the job accepts, or all if it names none.

        It may name them by some of their words.
        """
        return accepted_models(accepted, self.largest)

    def law(self, model: str) -> Law:
        return self.laws.get(model, PUBLISHED_SLOWDOWNS)

    def largest_bytes(self, model: str) -> int:
        """Returns the most memory that a job can have of an idle GPU of this model."""
        return self.largest.get(model, 0)


def capacity_of(
    nodes: Mapping[str, NodeCapacity], laws: Mapping[str, Law] | None = None
) -> Capacity:
    """Returns the capacity of these nodes."""
    largest: dict[str, int] = {}
    gpus = total_bytes = 0
    for node in nodes.values():
        for model, size_bytes, driver_bytes in sizes(node):
            gpus, total_bytes = gpus + 1, total_bytes + size_bytes
            largest[model] = max(largest.get(model, 0), size_bytes - driver_bytes)
    ordered = {name: nodes[name] for name in sorted(nodes)}
    return Capacity(ordered, largest, laws or {}, ClusterSize(gpus, total_bytes))


def sizes(node: NodeCapacity) -> tuple[tuple[str, int, int], ...]:
    """Returns, for each GPU, its model, its memory and the driver's part of it, in bytes."""
    return tuple((gpu.model, gpu.total_bytes, gpu.driver_bytes) for gpu in node.gpus)


def as_tenant(job: GPUJob, party: Party = ANYBODY) -> Tenant | None:
    reservation = job.status.reservation
    if reservation is None:
        return None
    return Tenant(
        job_uid=job.metadata.uid,
        memory_bytes=reservation.memory_bytes,
        utilization_percent=reservation.utilization_percent,
        # Nobody joins a job that is edited to be alone. It shares until its next attempt.
        whole_gpu=is_whole_gpu(reservation) or job.spec.sharing.mode is SharingMode.EXCLUSIVE,
        max_slowdown_percent=job.spec.sharing.max_slowdown_percent,
        party=party,
    )


def with_reservation(gpu: GPUCapacity, job_uid: str, reservation: Reservation) -> GPUCapacity:
    """Returns the GPU with the job's new reservation.

    The use above the old reservation counts only as far as the new one does not cover it.
    """
    tenants: list[Tenant] = []
    for tenant in gpu.tenants:
        if tenant.job_uid == job_uid:
            used_bytes = tenant.memory_bytes + tenant.excess_bytes
            tenant = replace(
                tenant,
                memory_bytes=reservation.memory_bytes,
                utilization_percent=reservation.utilization_percent,
                excess_bytes=max(0, used_bytes - reservation.memory_bytes)
                if tenant.excess_bytes
                else 0,
            )
        tenants.append(tenant)
    return replace(gpu, tenants=tuple(tenants))


def has_external_use(gpu: GPUCapacity, *, soon: bool = False) -> bool:
    """Returns whether unmanaged processes use more of the GPU than noise.

    With `soon`, the state after another reading counts.
    """
    external_bytes = gpu.external_bytes - gpu.terminating_bytes if soon else gpu.external_bytes
    return external_bytes > EXTERNAL_NOISE_BYTES
