"""How long a job will still hold its GPUs: from its own measured pace, else from earlier runs.

Feeds `order.OrderEntry.remaining_seconds`. Nothing here looks into the future: a job that has not
run, and whose like has not finished yet, has no estimate.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

# So many runs of a workload count, the newest.
RUNS_MAX = 16


def remaining_seconds(done: float, total: float | None, seconds_per_unit: float) -> float | None:
    """Units left times the measured seconds of one; None where the end or the pace is unknown.

    A unit is a step (or whatever the job counts its progress in).
    """
    if total is None or not 0 < seconds_per_unit < float("inf"):
        return None
    return max(total - done, 0.0) * seconds_per_unit


class Run(NamedTuple):
    """A run that finished: when (in seconds), of which job, and the GPU-seconds it took."""

    finished_at: float
    uid: str
    gpu_seconds: float


@dataclass(slots=True)
class RunHistory:
    """Runs that finished, by workload."""

    # Of each workload in the order of their ends.
    _runs: dict[Hashable, list[Run]] = field(default_factory=dict[Hashable, list[Run]])
    _medians: dict[Hashable, float] = field(default_factory=dict[Hashable, float])

    def add(self, workload: Hashable, run: Run) -> None:
        insort(self._runs.setdefault(workload, []), run)
        self._medians.pop(workload, None)

    def remove(self, workload: Hashable, run: Run) -> None:
        """Takes out a run that was added."""
        runs = self._runs[workload]
        del runs[bisect_left(runs, run)]
        if not runs:
            del self._runs[workload]
        self._medians.pop(workload, None)

    def expected_seconds(self, workload: Hashable, gpus: int) -> float | None:
        """The median of the newest runs, for a job on this many GPUs; None when there is none."""
        if workload not in self._runs:
            return None
        if workload not in self._medians:
            newest = self._runs[workload][-RUNS_MAX:]
            self._medians[workload] = median(run.gpu_seconds for run in newest)
        return self._medians[workload] / gpus
