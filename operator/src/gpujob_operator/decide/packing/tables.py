"""Look-up tables for the workload mix: the value of a GPU's or a node's free capacity.

A `WorkloadMix` has the requests of the snapshot's jobs (pending, running and recent) with their
frequencies. The tables are computed from it and from the kinds of GPUs. They have one entry for
every state of a GPU, so that placement only looks up values:

- worth: the value of the GPU's free capacity (see `cutting_stock`), in GPUs of the largest memory.
  An idle GPU of half that memory is worth 0.5.
- slots: how many requests of each typical class the GPU can still take.

Memory is counted in hundredths of a GPU, and utilization in twentieths. Requests are rounded up,
and free capacity is rounded down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpujob_operator.decide.packing.arrays import Floats, Integers
from gpujob_operator.decide.packing.cutting_stock import Size, packing_bound
from gpujob_operator.decide.packing.demand import (
    CPU_MILLI_MIN,
    MEMORY_STEPS,
    SIZES_MAX,
    UTILIZATION_STEPS,
    Demand,
    WorkloadMix,
)


@dataclass(frozen=True, slots=True)
class Tables:
    """Look-up tables of a mix on the kinds of GPUs of a fleet.

    A GPU's state is `base[kind] + memory * (utilization steps + 1) + utilization`. Idle GPUs have
    their own state (`idle[kind]`), and so do GPUs that take nothing more (0).
    """

    mix: WorkloadMix
    kinds: tuple[tuple[str, int], ...]
    utilization_steps: int
    base: Integers
    idle: Integers
    worth: Floats
    slots: Floats
    # Per typical class.
    workers_per_gpu: Floats
    workers_per_cpu_milli: Floats
    workers_per_byte: Floats
    value: Floats
    # Host resources that one GPU's worth of requests takes on average. 0: none.
    cpu_milli_per_gpu: float
    memory_bytes_per_gpu: float
    # Requests that only some models serve: the accepted models, and the share, per set of models.
    models: tuple[str, ...] = ()
    restricted_access: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    restricted_share: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, mix: WorkloadMix, kinds: Sequence[tuple[str, int]]) -> "Tables":
        uses_utilization = any(d.utilization_percent > 0 and d.gpus for d in mix.demands)
        steps = UTILIZATION_STEPS if uses_utilization else 0
        per_kind = (MEMORY_STEPS + 1) * (steps + 1) + 1
        base = 1 + np.arange(len(kinds), dtype=np.int64) * per_kind
        largest = max((kind[1] for kind in kinds), default=1)
        worth = np.zeros(1 + len(kinds) * per_kind)
        with_gpus = [
            (demand, weight)
            for demand, weight in zip(mix.typical, mix.typical_weights, strict=True)
            if demand.gpus
        ]
        typical = [demand for demand, _ in with_gpus]
        weights = [weight for _, weight in with_gpus]
        slots = np.zeros((len(worth), len(typical)))
        for number, kind in enumerate(kinds):
            rows = slice(int(base[number]), int(base[number]) + per_kind)
            worth[rows] = _worth_of_kind(mix, kind, steps) * kind[1] / largest
            slots[rows] = _slots_of_kind(typical, kind, steps)
        models = tuple(sorted({model for model, _ in kinds}))
        gpus, cpu, memory = _host_per_gpu(mix, kinds)
        access, share = _restricted(mix, kinds, models)
        return cls(
            mix=mix,
            kinds=tuple(kinds),
            utilization_steps=steps,
            base=base,
            idle=base + per_kind - 1,
            worth=worth,
            slots=slots,
            workers_per_gpu=1.0 / np.array([d.gpus for d in typical], dtype=np.float64),
            workers_per_cpu_milli=1.0
            / np.array([max(d.cpu_milli, CPU_MILLI_MIN) for d in typical], dtype=np.float64),
            workers_per_byte=1.0
            / np.array([max(d.memory_bytes, 1) for d in typical], dtype=np.float64),
            value=np.array(
                [w * _gpus_worth(d, kinds) for d, w in zip(typical, weights, strict=True)]
            ),
            cpu_milli_per_gpu=cpu / gpus if gpus else 0.0,
            memory_bytes_per_gpu=memory / gpus if gpus else 0.0,
            models=models,
            restricted_access=access,
            restricted_share=share,
        )


def _allowed(demand: Demand, kind: tuple[str, int]) -> bool:
    return not demand.models or kind[0] in demand.models


def _host_size(demand: Demand, kinds: Sequence[tuple[str, int]]) -> int:
    """Returns the memory of the smallest GPU that can take the request, its natural host."""
    sizes = [
        kind[1] for kind in kinds if _allowed(demand, kind) and kind[1] >= demand.gpu_memory_bytes
    ]
    return min(sizes, default=max(demand.gpu_memory_bytes, 1))


def _gpus_worth(demand: Demand, kinds: Sequence[tuple[str, int]]) -> float:
    """Returns what the request takes of its natural host, in GPUs of the largest memory."""
    if not demand.gpus or not kinds:
        return 0.0
    size = _host_size(demand, kinds)
    return demand.gpus * demand.gpu_share(size) * size / max(kind[1] for kind in kinds)


def _worth_of_kind(mix: WorkloadMix, kind: tuple[str, int], steps: int) -> Floats:
    """Returns worth by state: [memory x utilization] flattened, then idle. An idle GPU is
    worth 1.
    """
    shape = (MEMORY_STEPS, steps)
    counts: dict[Size, float] = {}
    for demand, weight in zip(mix.demands, mix.weights, strict=True):
        size = demand.steps(kind[1], steps) if demand.gpus and _allowed(demand, kind) else None
        if size is None or demand.exclusive:
            continue
        counts[size] = counts.get(size, 0.0) + weight * demand.gpus
    heaviest = sorted(counts, key=lambda size: (-counts[size], size))[:SIZES_MAX]
    sizes = sorted(heaviest, reverse=True)
    worth = packing_bound(tuple(sizes), tuple(counts[size] for size in sizes), shape)
    return np.append(worth.ravel(), 1.0)


def _slots_of_kind(typical: Sequence[Demand], kind: tuple[str, int], steps: int) -> Floats:
    """Returns how many requests of every typical class fit, by state as in `_worth_of_kind`."""
    memory, utilization = np.indices((MEMORY_STEPS + 1, steps + 1))
    table = np.zeros(((MEMORY_STEPS + 1) * (steps + 1) + 1, len(typical)))
    for column, demand in enumerate(typical):
        size = demand.steps(kind[1], steps) if _allowed(demand, kind) else None
        if size is None:
            continue
        if demand.exclusive:
            table[-1, column] = 1
            continue
        fits = memory // size[0]
        if size[1]:
            fits = np.minimum(fits, utilization // size[1])
        table[:-1, column] = fits.ravel()
        table[-1, column] = fits[-1, -1]
    return table


def _host_per_gpu(mix: WorkloadMix, kinds: Sequence[tuple[str, int]]) -> tuple[float, float, float]:
    """Returns GPUs' worth, CPU (milli) and memory (bytes) of the average request with GPUs."""
    gpus = cpu = memory = 0.0
    for demand, weight in zip(mix.demands, mix.weights, strict=True):
        if demand.gpus:
            gpus += weight * _gpus_worth(demand, kinds)
            cpu += weight * demand.cpu_milli
            memory += weight * demand.memory_bytes
    return gpus, cpu, memory


def _restricted(
    mix: WorkloadMix, kinds: Sequence[tuple[str, int]], models: tuple[str, ...]
) -> tuple[Floats, Floats]:
    """Returns the models that restricted requests accept, and their share of all requested GPUs."""
    total = 0.0
    shares: dict[frozenset[str], float] = {}
    for demand, weight in zip(mix.demands, mix.weights, strict=True):
        asked = weight * _gpus_worth(demand, kinds)
        total += asked
        accepted = demand.models & set(models)
        if accepted and len(accepted) < len(models):
            shares[accepted] = shares.get(accepted, 0.0) + asked
    ordered = sorted(shares, key=sorted)
    access = [[float(model in accepted) for model in models] for accepted in ordered]
    share = [shares[accepted] / total if total else 0.0 for accepted in ordered]
    return np.array(access).reshape(len(ordered), len(models)), np.array(share)
