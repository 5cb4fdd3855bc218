"""Small fleets for tests of placement: GPUs of 80 GiB unless a test says otherwise."""

from typing import Any

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import GPUState, NodeState

CARD_BYTES = 80 * GIB


def gpu(
    uuid: str,
    *,
    total: int = CARD_BYTES,
    held: int = 0,
    used_percent: float = 0.0,
    model: str = "A100",
    **fields: Any,
) -> GPUState:
    """A GPU of which `held` bytes are reserved; idle when nothing is."""
    defaults: dict[str, Any] = {"idle": held == 0, "utilization_limit_percent": 100.0}
    return GPUState(
        uuid=uuid,
        model=model,
        memory_total_bytes=total,
        memory_free_bytes=total - held,
        utilization_used_percent=used_percent,
        **{**defaults, **fields},
    )


def node(name: str, *gpus: GPUState, cpu: int = 64, memory: int = 512, **fields: Any) -> NodeState:
    """A node with these GPUs; `cpu` in cores, `memory` in GiB."""
    return NodeState(name, cpu * 1000, memory * GIB, gpus, **fields)


def idle_node(name: str, gpus: int = 8, *, cpu: int = 64, **fields: Any) -> NodeState:
    return node(name, *(gpu(f"{name}-{n}") for n in range(gpus)), cpu=cpu, **fields)


def shared(memory_gib: float, utilization: float = 0.0, *, cpu: float = 1, **fields: Any) -> Demand:
    """A request for part of one GPU."""
    return Demand(
        cpu_milli=int(cpu * 1000),
        memory_bytes=GIB,
        gpu_memory_bytes=int(memory_gib * GIB),
        utilization_percent=utilization,
        **fields,
    )


def whole(gpus: int = 1, *, cpu: float = 1, **fields: Any) -> Demand:
    """A request for whole GPUs."""
    return Demand(
        cpu_milli=int(cpu * 1000),
        memory_bytes=GIB,
        gpus=gpus,
        gpu_memory_bytes=1,
        exclusive=True,
        **fields,
    )


def place_all(
    arrays: NodeArrays, demands: list[Demand], mix: WorkloadMix
) -> list[tuple[str, tuple[int, ...]]]:
    """Places one after the other; where each went, ("", ()) for the refused."""
    score_cache = ScoreCache()
    where: list[tuple[str, tuple[int, ...]]] = []
    for demand in demands:
        request = Request(demand)
        choice = choose(arrays, request, mix, score_cache)
        if choice is not None:
            arrays.place(choice.row, choice.gpus, request.allocation)
            where.append((arrays.names[choice.row], choice.gpus))
        else:
            where.append(("", ()))
    return where
