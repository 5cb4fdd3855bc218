"""The GPUs of the cluster, and what jobs hold of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, Reservation
from gpujob_api.gpunode import GPU, GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.manifest import GPUNODE, GPUQUEUE, from_manifest
from kubectl_gpujob.cluster import OURS, Cluster


@dataclass(frozen=True, slots=True)
class HeldGPU:
    """A GPU with the jobs on it."""

    node: GPUNode
    gpu: GPU
    jobs: Sequence[GPUJob] = ()

    @property
    def is_whole(self) -> bool:
        """Whether a job that needs a whole GPU could have it, as far as memory shows."""
        return self.is_open and not self.jobs and not self.unmanaged_bytes

    @property
    def is_open(self) -> bool:
        return self.gpu.healthy and not self.node.spec.unschedulable

    @property
    def reserved_bytes(self) -> int:
        """The memory that the jobs reserve. A job that needs the whole GPU reserves all of it."""
        held = [job.status.reservation for job in self.jobs]
        if any(one is not None and one.exclusive for one in held):
            return self._usable_bytes
        return min(sum(map(_bytes_of, held)), self._usable_bytes)

    @property
    def unmanaged_bytes(self) -> int:
        """The memory of processes that belong to no pod."""
        return sum(one.memory_bytes for one in self.gpu.processes if one.pod_uid is None)

    @property
    def free_bytes(self) -> int:
        """The memory that another job could reserve."""
        if not self.is_open:
            return 0
        return max(self._usable_bytes - self.reserved_bytes - self.unmanaged_bytes, 0)

    @property
    def _usable_bytes(self) -> int:
        return max(self.gpu.memory_total_bytes - self.gpu.memory_reserved_bytes, 0)


def _bytes_of(reservation: Reservation | None) -> int:
    return reservation.memory_bytes if reservation is not None else 0


def read_nodes(cluster: Cluster) -> list[GPUNode]:
    """Returns the GPU nodes by name. Raises `UserError`."""
    found: list[GPUNode] = []
    for item in cluster.objects("gpunodes", f"{OURS}/{GPUNODE.plural}"):
        try:
            found.append(from_manifest(GPUNode, item))
        except FieldError:
            # One node that another version wrote must not hide the others.
            continue
    return sorted(found, key=lambda node: node.metadata.name)


def read_queues(cluster: Cluster) -> list[GPUQueue]:
    """Returns the queues by name. Raises `UserError`."""
    found: list[GPUQueue] = []
    for item in cluster.objects("gpuqueues", f"{OURS}/{GPUQUEUE.plural}"):
        try:
            found.append(from_manifest(GPUQueue, item))
        except FieldError:
            continue
    return sorted(found, key=lambda queue: queue.metadata.name)


def held_gpus(nodes: Iterable[GPUNode], jobs: Iterable[GPUJob]) -> list[HeldGPU]:
    on: dict[str, list[GPUJob]] = {}
    for job in jobs:
        placement = None if job.finished else job.status.placement
        for worker in placement.workers if placement is not None else ():
            for uuid in worker.gpus:
                on.setdefault(uuid, []).append(job)
    return [
        HeldGPU(node, gpu, tuple(on.get(gpu.uuid, ())))
        for node in nodes
        for gpu in node.status.gpus
    ]


def price_range(gpus: Iterable[HeldGPU]) -> str:
    """Returns the prices per GPU and hour, or "-" if no node has one."""
    prices = {
        held.node.spec.price_per_gpu_hour
        for held in gpus
        if held.node.spec.price_per_gpu_hour is not None
    }
    if not prices:
        return "-"
    low, high = min(prices), max(prices)
    return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"


def by_model(gpus: Iterable[HeldGPU]) -> Mapping[str, list[HeldGPU]]:
    found: dict[str, list[HeldGPU]] = {}
    for held in gpus:
        found.setdefault(held.gpu.model, []).append(held)
    return dict(sorted(found.items()))
