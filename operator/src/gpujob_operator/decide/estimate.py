"""How long a job will still hold its cards: from its own measured pace, else from earlier runs.

Feeds `order.Contender.remaining_seconds`. Nothing here looks into the future: a job that has not
run, and whose like has not finished yet, has no estimate.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

# Earlier runs remembered of one workload, and workloads remembered; the newest stay.
RUNS_MAX = 16
WORKLOADS_MAX = 4096


def remaining_seconds(done: float, total: float | None, seconds_per_unit: float) -> float | None:
    """Units left times the measured seconds of one; None where the end or the pace is unknown.

    A unit is a step (or whatever the job counts its progress in).
    """
    if total is None or not 0 < seconds_per_unit < float("inf"):
        return None
    return max(total - done, 0.0) * seconds_per_unit


@dataclass(slots=True)
class RunHistory:
    """Card-seconds that finished runs took, by workload: exactly alike first, then by family."""

    _runs: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])

    def finished(self, workload: Hashable, family: Hashable, card_seconds: float) -> None:
        """Remembers a run under its workload (same image, command, cards) and its family."""
        for key in (("workload", workload), ("family", family)):
            runs = self._runs.pop(key, [])
            self._runs[key] = [*runs, card_seconds][-RUNS_MAX:]
        while len(self._runs) > WORKLOADS_MAX:
            del self._runs[next(iter(self._runs))]

    def expected_seconds(self, workload: Hashable, family: Hashable, cards: int) -> float | None:
        """The median of earlier runs, for a job on this many cards; None when there is none."""
        for key in (("workload", workload), ("family", family)):
            if key in self._runs:
                return median(self._runs[key]) / cards
        return None
