"""Plain values of nodes and GPUs, from which the arrays are built, and what a placement takes."""

from dataclasses import dataclass

from gpujob_operator.decide.packing.party import ANYBODY, Party

UTILIZATION_FULL_PERCENT = 100.0
# More pods than any node takes.
_MANY_PODS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GPUState:
    """One GPU. `memory_total_bytes` is what an idle GPU offers to GPUJobs.

    `memory_free_bytes` is what is left after reservations, unmanaged processes and leaks. `idle`
    means that the GPU has no tenant. `held_whole` means that a job has the GPU to itself. `usable`
    is False for a GPU that takes nothing new. `utilization_limit_percent` is the summed utilization
    up to which its tenants let other jobs join.
    """

    uuid: str
    model: str
    memory_total_bytes: int
    memory_free_bytes: int
    utilization_used_percent: float = 0.0
    utilization_limit_percent: float = UTILIZATION_FULL_PERCENT
    idle: bool = True
    held_whole: bool = False
    usable: bool = True
    # GPUs with a fast link between them share a number.
    link_group: int = 0
    # What the tenants have in common.
    party: Party = ANYBODY


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. `price_per_gpu_hour` includes the cost of interruptions. None: unknown."""

    name: str
    cpu_milli_free: int
    memory_bytes_free: int
    gpus: tuple[GPUState, ...]
    spot: bool = False
    price_per_gpu_hour: float | None = None
    eligible: bool = True
    interruptions_per_hour: float = 0.0
    # How many more pods the node takes.
    pods_free: int = _MANY_PODS


@dataclass(frozen=True, slots=True)
class WorkerAllocation:
    """What one worker takes of a node: host resources, and the same amount of each of its GPUs."""

    cpu_milli: int
    memory_bytes: int
    gpu_memory_bytes: int
    utilization_percent: float
    whole_gpu: bool
    # The summed utilization up to which other jobs may join.
    utilization_limit_percent: float = UTILIZATION_FULL_PERCENT
    party: Party = ANYBODY
