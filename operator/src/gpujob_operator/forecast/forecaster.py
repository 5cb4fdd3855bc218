"""Keeps the ranges of the expected starts up to date, at a bounded share of a core.

* In: the snapshot of the last cycle, while this process may act.
* Does: at most one calculation in `INTERVAL_SECONDS`, with `CORE_FRACTION` of a core on average.
* Out: `newest`, which the loop puts into its snapshots.
* Called by: `run`, which keeps it running.

A calculation that fails, or has too little time for the size of the cluster, gives no ranges, so
those of the calculation before vanish.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import (
    DRAWS_MIN,
    Forecast,
    Outcomes,
    Result,
    may_start,
    newest,
    outcomes_among,
    results_of,
)
from gpujob_operator.forecast.child import Calculation, CalculationError, calculate
from gpujob_operator.forecast.wire import is_too_large
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

INTERVAL_SECONDS = 60.0
CORE_FRACTION = 0.05
# After a calculation that gave no ranges, in which a cluster hardly becomes smaller.
PAUSE_SECONDS = 900.0

Calculate = Callable[[Snapshot, datetime], Awaitable[Calculation]]


@dataclass(slots=True)
class Score:
    """How many start ranges held: the newest outcomes, also of jobs that are deleted meanwhile.

    It has those that one leader has seen. The first look restores those of earlier leaders.
    """

    metrics: Metrics
    _results: dict[str, Result] | None = field(default=None)

    def look(self, jobs: Iterable[GPUJob]) -> Outcomes:
        """Adds the outcomes of these jobs. Returns all that count."""
        before = self._results
        self._results = newest({**(before or {}), **results_of(jobs)})
        if before is not None:
            for uid in self._results.keys() - before.keys():
                held = "true" if self._results[uid].held else "false"
                self.metrics.start_ranges.labels(held).inc()
        return outcomes_among(self._results)


class Forecaster:
    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot | None],
        clock: Callable[[], datetime],
        may_act: Callable[[], bool],
        changed: Callable[[], None],
        metrics: Metrics,
        calculate: Calculate = calculate,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`changed` is called after each calculation."""
        self._snapshot = snapshot
        self._clock = clock
        self._may_act = may_act
        self._changed = changed
        self._metrics = metrics
        self._calculate = calculate
        self._sleep = sleep
        self._score = Score(metrics)
        # None before the first calculation of this leader.
        self.newest: Forecast | None = None

    async def run(self) -> None:
        """Runs until cancelled. A process that has just begun has more urgent work."""
        pause_seconds = INTERVAL_SECONDS
        while True:
            await self._sleep(pause_seconds)
            pause_seconds = await self.look()

    async def look(self) -> float:
        """Calculates once. Returns the seconds until the next calculation."""
        if not self._may_act():
            self.newest, self._score = None, Score(self._metrics)
            return INTERVAL_SECONDS
        snapshot = self._snapshot()
        if snapshot is None:
            return INTERVAL_SECONDS
        now, outcomes = self._clock(), self._score.look(snapshot.jobs)
        pause_seconds, found = await self._calculated(snapshot, now)
        if self._may_act():
            self.newest = Forecast(now, found.intervals, outcomes)
            self._changed()
        return pause_seconds

    async def _calculated(self, snapshot: Snapshot, now: datetime) -> tuple[float, Calculation]:
        if not any(may_start(job, job.status) for job in snapshot.jobs):
            return INTERVAL_SECONDS, Calculation()
        if is_too_large(snapshot):
            log.warning("no start ranges: the cluster is too large", jobs=len(snapshot.jobs))
            return PAUSE_SECONDS, Calculation()
        try:
            found = await self._calculate(snapshot, now)
        except CalculationError as error:
            log.warning("no start ranges", error=str(error))
            return PAUSE_SECONDS, Calculation()
        self._metrics.start_range_draws.set(found.draws)
        if found.draws < DRAWS_MIN:
            log.warning("no start ranges: too little time for this cluster", draws=found.draws)
            return PAUSE_SECONDS, found
        return max(INTERVAL_SECONDS, found.seconds / CORE_FRACTION), found
