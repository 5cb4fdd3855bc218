"""The mix of requests in a snapshot, which placement expects of future jobs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix

# Steps per doubling of a count. One job more or less does not change a mix of thousands, so what is
# computed from the mix stays valid.
STEPS_PER_DOUBLING = 2


def rounded_mix(counts: Mapping[Demand, float]) -> WorkloadMix:
    """Returns the mix of these requests, with counts rounded to steps of 41 %.

    Each worker of each unfinished job counts once.
    """
    return WorkloadMix.of({demand: _step(count) for demand, count in counts.items() if count > 0})


def _step(count: float) -> float:
    return 2 ** (round(math.log2(count) * STEPS_PER_DOUBLING) / STEPS_PER_DOUBLING)


@dataclass(slots=True)
class MixCounter:
    """Counts how often each request occurs.

    `put` unfinished jobs as they come and change, `drop` them as they go, and `renew`.
    """

    mix: WorkloadMix = field(default_factory=WorkloadMix)
    _counts: dict[Demand, float] = field(default_factory=dict[Demand, float])
    # What is counted of each job: its request and its number of workers.
    _counted: dict[str, tuple[Demand, int]] = field(default_factory=dict[str, tuple[Demand, int]])
    _uncounted: set[str] = field(default_factory=set[str])
    # The sizes of GPUs for which the jobs were counted.
    _largest: Mapping[str, int] = field(default_factory=dict[str, int])

    def put(self, uid: str) -> None:
        self.drop(uid)
        self._uncounted.add(uid)

    def drop(self, uid: str) -> None:
        self._uncounted.discard(uid)
        counted = self._counted.pop(uid, None)
        if counted is None:
            return
        demand, workers = counted
        left = self._counts[demand] - workers
        if left > 0:
            self._counts[demand] = left
        else:
            del self._counts[demand]

    def renew(self, capacity: Capacity, request: Callable[[str], tuple[Demand, int]]) -> None:
        """Counts the jobs that were put. `request` returns a job's request and number of workers,
        by UID.
        """
        if capacity.largest != self._largest:
            # Requests depend on the largest GPUs.
            self._largest = dict(capacity.largest)
            self._uncounted |= self._counted.keys()
            self._counted, self._counts = {}, {}
        for uid in sorted(self._uncounted):
            demand, workers = self._counted[uid] = request(uid)
            self._counts[demand] = self._counts.get(demand, 0.0) + workers
        self._uncounted.clear()
        after = rounded_mix(self._counts)
        # The object stays the same while the mix is equal, so what is computed from it stays valid.
        self.mix = self.mix if after.equals(self.mix) else after
