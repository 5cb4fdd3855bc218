"""The mix of requests in a snapshot: what placement expects the jobs still to come to look like."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix

# Counts come in steps of this many to a doubling: a job more or less changes no mix of thousands,
# and what is computed from the mix stays.
STEPS_PER_DOUBLING = 2


def rounded_mix(counts: Mapping[Demand, float]) -> WorkloadMix:
    """The mix of these requests, each worker of each unfinished job counted once, with counts
    rounded to steps of 41 %."""
    return WorkloadMix.of({demand: _step(count) for demand, count in counts.items() if count > 0})


def _step(count: float) -> float:
    return 2 ** (round(math.log2(count) * STEPS_PER_DOUBLING) / STEPS_PER_DOUBLING)


@dataclass(slots=True)
class MixCounter:
    """How often each request is asked for, and the mix that follows."""

    _counts: dict[Demand, float] = field(default_factory=dict[Demand, float])
    _counted_for: Mapping[str, int] = field(default_factory=dict[str, int])

    def start_again(self, capacity: Capacity) -> bool:
        """True when all has to be counted anew: requests depend on the largest GPUs."""
        if capacity.largest == self._counted_for:
            return False
        self._counted_for = dict(capacity.largest)
        self._counts = {}
        return True

    def add(self, demand: Demand, workers: int) -> None:
        self._counts[demand] = self._counts.get(demand, 0.0) + workers

    def remove(self, demand: Demand, workers: int) -> None:
        left = self._counts[demand] - workers
        if left > 0:
            self._counts[demand] = left
        else:
            del self._counts[demand]

    def mix(self, before: WorkloadMix) -> WorkloadMix:
        """The mix of what is counted; the one before, if it is the same."""
        after = rounded_mix(self._counts)
        return before if after.equals(before) else after
