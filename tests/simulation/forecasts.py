"""The forecaster's child process in virtual time, and the check of the ranges that jobs show."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import DRAWS_MIN, Interval, may_start
from gpujob_operator.decide.simulation.start_ranges import DRAWS
from gpujob_operator.forecast.child import WAIT_SECONDS_MAX, Calculation, CalculationError
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Revision
from tests.simulation.clock import Clock
from tests.simulation.faults import Faults

ENDS = ("fails", "hangs", "too few draws", "odd")
# From then on no job gets a range: those that wait for ever would get another one each minute, and
# the check of the end expects silence.
SILENT_FROM_SECONDS = 3000.0


class PlayedForecasts:
    """Answers after seconds, with ranges that nothing supports, because none may depend on them."""

    def __init__(self, clock: Clock, faults: Faults) -> None:
        self._clock, self._faults = clock, faults

    async def calculate(self, snapshot: Snapshot, now: datetime) -> Calculation:
        random = self._clock.random
        end = random.choice(ENDS) if self._faults.fails_forecast(random) else ""
        if end == "hangs":
            await asyncio.sleep(WAIT_SECONDS_MAX)
            raise CalculationError(f"no answer within {WAIT_SECONDS_MAX:.0f} s")
        await asyncio.sleep(random.uniform(0.5, 15.0))
        if end == "fails":
            raise CalculationError("the process ended with -9")
        if end == "too few draws":
            return Calculation(draws=DRAWS_MIN - 1, seconds=10.0)
        if end == "odd" and self._clock.now < SILENT_FROM_SECONDS:
            # For every job, also one that runs, one that is gone, and from before it was created.
            found = {job.metadata.uid: self._interval(now, -3600.0) for job in snapshot.jobs}
            return Calculation({"nobody": self._interval(now), **found}, DRAWS, 1.0)
        if self._clock.now >= SILENT_FROM_SECONDS:
            return Calculation({}, DRAWS, 1.0)
        waiting = (job for job in snapshot.jobs if may_start(job, job.status))
        ranges = {job.metadata.uid: self._interval(now) for job in waiting}
        return Calculation(ranges, DRAWS, random.uniform(1.0, 8.0))

    def _interval(self, now: datetime, least_seconds: float = 0.0) -> Interval:
        random = self._clock.random
        earliest = now + timedelta(seconds=random.uniform(least_seconds, 600.0))
        late = earliest + timedelta(seconds=random.uniform(0.0, 1200.0))
        return Interval.of(earliest, random.choice((late, late, None)))


class ShownRanges:
    """Checks that no job shows a range in or after the write that places it."""

    def __init__(self, api: ApiServer, fail: Callable[[str, str], None]) -> None:
        self._api, self._fail = api, fail
        api.recorders.append(self.observe)

    def observe(self, revision: Revision) -> None:
        if revision.kind is not Kind.JOB or revision.type == "DELETED":
            return
        job = self._api.job(revision.object)
        start = job.status.start
        if start is None:
            return
        if (start.earliest is None) != (start.computed_at is None):
            self._fail("start range", f"{job.metadata.key}: half a range, {start}")
        if start.computed_at is not None and (job.status.placement or job.finished):
            self._fail("start range", f"{job.metadata.key} is placed and shows {start}")
