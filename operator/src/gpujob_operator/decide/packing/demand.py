"""The request of one worker, and the workload mix, as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpujob_operator.decide.packing.cutting_stock import Size

MEMORY_STEPS = 100
UTILIZATION_STEPS = 20
# Typical classes are the most frequent ones that together cover this share of the requests (the
# same bound as in "Beware of Fragmentation", USENIX ATC'23).
TYPICAL_SHARE = 0.95
TYPICAL_MAX = 64
# Maximum number of request sizes in the cutting-stock problem. The rarest are left out.
SIZES_MAX = 48
# Less free CPU than this counts as fragmented, because no job requests less.
CPU_MILLI_MIN = 100


@dataclass(frozen=True, slots=True)
class Demand:
    """What one worker requests of one node: host resources, and the same of each of `gpus` GPUs.

    `exclusive` GPUs are taken whole and must be idle. Empty `models` means any model.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 1
    gpu_memory_bytes: int = 0
    utilization_percent: float = 0.0
    exclusive: bool = False
    models: frozenset[str] = frozenset()

    def gpu_share(self, memory_total_bytes: int) -> float:
        """Returns the larger of the shares of memory and utilization, or 1 if the GPU is taken
        whole.
        """
        if self.exclusive:
            return 1.0
        return max(self.gpu_memory_bytes / memory_total_bytes, self.utilization_percent / 100)

    def steps(self, memory_total_bytes: int, utilization_steps: int) -> Size | None:
        """Returns the steps of a GPU that one request takes, or None if it never fits on such a
        GPU.
        """
        if self.gpu_memory_bytes > memory_total_bytes:
            return None
        if self.exclusive:
            return MEMORY_STEPS, utilization_steps
        memory = -(-self.gpu_memory_bytes * MEMORY_STEPS // memory_total_bytes)
        share = min(self.utilization_percent / 100, 1.0)
        return max(memory, 1), int(np.ceil(share * utilization_steps - 1e-9))


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadMix:
    """Requests with their weights, which sum to 1, heaviest first. Compared by identity."""

    demands: tuple[Demand, ...] = ()
    weights: tuple[float, ...] = ()
    typical: tuple[Demand, ...] = ()
    typical_weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, counts: Mapping[Demand, float]) -> "WorkloadMix":
        """Returns the mix of these requests. Counts of 0 and less are left out."""
        seen = sorted(
            ((demand, count) for demand, count in counts.items() if count > 0),
            key=lambda item: (-item[1], _order(item[0])),
        )
        total = sum(count for _, count in seen)
        if not seen:
            return cls()
        weights = tuple(count / total for _, count in seen)
        covered = np.cumsum(weights)
        enough = int(np.searchsorted(covered, TYPICAL_SHARE - 1e-12)) + 1
        kept = min(enough, TYPICAL_MAX, len(seen))
        demands = tuple(demand for demand, _ in seen)
        typical_total = sum(weights[:kept])
        return cls(
            demands=demands,
            weights=weights,
            typical=demands[:kept],
            typical_weights=tuple(weight / typical_total for weight in weights[:kept]),
        )

    def equals(self, other: "WorkloadMix") -> bool:
        """Returns whether both mixes give the same results.

        If so, keep the old one, because its tables are cached.
        """
        return (self.demands, self.weights) == (other.demands, other.weights)


def _order(demand: Demand) -> tuple[object, ...]:
    """Orders larger requests first."""
    return (
        -demand.gpus,
        -demand.gpu_memory_bytes,
        -demand.utilization_percent,
        -demand.cpu_milli,
        -demand.memory_bytes,
        demand.exclusive,
        tuple(sorted(demand.models)),
    )
