"""The scheduling loop: wait for changes, take a snapshot, plan, start the writes, repeat.

* In: snapshots of the cache, with the decided statuses whose write is in flight.
* Does: calls `plan`, at most a third of the time, while this process may act.
* Out: plans that are submitted to the executor, and dumps of cycles.
* Called by: `run`, which keeps the loop running. `dirty` wakes it after a change.

No cycle waits for writes, because the executor makes them in the background. The loop acts only
while this process holds the Lease and the cache is complete. An exception in a cycle is logged and
counted, the cycle is dumped, and a pause follows. The loop never ends by itself.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from gpujob_operator.act.executor import Executor, Submission
from gpujob_operator.cycle import CycleDumps, PlanFunction
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.price_names import PriceNames
from gpujob_operator.telemetry.gauges import Gauges
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits on how the loop spends its time, in seconds."""

    settle: float = 0.05
    settle_max: float = 1.0
    soft: float = 0.5
    resync: float = 30.0
    next_min: float = 0.1
    error_pause: float = 1.0
    error_pause_max: float = 30.0


class SchedulingLoop:
    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        plan: PlanFunction,
        executor: Executor,
        dirty: Dirty,
        metrics: Metrics,
        clock: Callable[[], datetime],
        may_act: Callable[[], bool],
        dumps: CycleDumps | None = None,
        dump_every: bool = False,
        pace: Pace | None = None,
        settled: Callable[[], None] | None = None,
        planned: Callable[[Snapshot], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._snapshot = snapshot
        self._plan = plan
        self._executor = executor
        self._dirty = dirty
        self._metrics = metrics
        self._gauges = Gauges(metrics)
        self._price_names = PriceNames()
        self._clock = clock
        self._may_act = may_act
        self._dumps = dumps
        self._dump_every = dump_every
        self._dump_next = False
        self._pace = pace or Pace()
        # Called once, after the first cycle.
        self._settled = settled
        # Called after each cycle, with what it was planned from.
        self._planned = planned
        self._failures = 0
        self.last_cycle_at: float = monotonic()
        # Duration of the last cycle.
        self.cycle_seconds = 0.0
        self.stopping = False

    def dump_next(self) -> None:
        """Writes the next cycle to the dump folder (SIGUSR1)."""
        self._dump_next = True
        self._dirty.mark()

    async def run(self) -> None:
        """Runs until `stop`. The executor finishes the writes in flight."""
        wait_seconds = 0.0
        while not self.stopping:
            await self._dirty.wait(wait_seconds, self._settle_seconds(), self._pace.soft)
            if self.stopping:
                return
            wait_seconds = self._guarded_cycle()

    def _settle_seconds(self) -> float:
        """Returns the settle time, which limits planning to a third of the time.

        Watches and writes need the rest. Without the limit, every lane that ends on a large cluster
        would start a cycle and delay everything else.
        """
        return max(self._pace.settle, min(2 * self.cycle_seconds, self._pace.settle_max))

    def stop(self) -> None:
        self.stopping = True
        self._dirty.mark()

    def _guarded_cycle(self) -> float:
        """Runs one cycle. Returns the maximum wait before the next, in seconds."""
        self._dirty.take()
        if not self._may_act():
            self.last_cycle_at = self._monotonic()
            return self._pace.resync
        try:
            wait_seconds = self._cycle()
        except Exception as error:
            self._failures += 1
            self._metrics.cycle_errors.inc()
            log.error("cycle failed", error=str(error), with_traceback=True)
            pace = self._pace
            return backoff_seconds(pace.error_pause, self._failures - 1, pace.error_pause_max)
        self._failures = 0
        return wait_seconds

    def _cycle(self) -> float:
        """Plans and starts the writes. The snapshot includes the writes that are in flight."""
        started = self._monotonic()
        snapshot, now = self._executor.assume(self._snapshot()), self._clock()
        plan = self._decide(snapshot, now)
        submission = self._executor.submit(plan)
        self._planned(snapshot)
        self._measure(snapshot, now, started)
        self._tell(plan, submission)
        if self._settled is not None:
            self._settled()
            self._settled = None
        return self._wait_seconds(plan, submission)

    def _wait_seconds(self, plan: Plan, submission: Submission) -> float:
        """Returns the maximum wait until the next cycle. The end of a lane wakes the loop
        earlier.
        """
        waits = [self._pace.resync]
        if submission.retry_seconds is not None:
            waits.append(max(self._pace.next_min, submission.retry_seconds))
        if plan.next_seconds is not None:
            # Planning again cannot start items that are held back or backing off.
            idle = submission.held_back or submission.backing_off
            least = self._pace.error_pause if idle else self._pace.next_min
            waits.append(max(least, plan.next_seconds))
        return min(waits)

    def _tell(self, plan: Plan, submission: Submission) -> None:
        results = {one.value: count for one, count in self._executor.take_results().items()}
        if submission.started or submission.overtaking or submission.postponed or results:
            log.info(
                "cycle",
                items=len(plan.items),
                started=submission.started,
                overtaking=submission.overtaking,
                held_back=submission.held_back,
                backing_off=submission.backing_off,
                postponed=submission.postponed,
                **results,
            )

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        started = self._monotonic()
        try:
            plan = self._plan(snapshot, now)
        except Exception:
            self._dump(snapshot, now, None)
            raise
        self._metrics.plan_seconds.observe(self._monotonic() - started)
        if self._dump_next or (self._dump_every and plan.items):
            self._dump_next = False
            self._dump(snapshot, now, plan)
        return plan

    def _dump(self, snapshot: Snapshot, now: datetime, plan: Plan | None) -> None:
        if self._dumps is None:
            return
        with suppress(OSError):
            log.info("cycle dumped", path=str(self._dumps.write(snapshot, now, plan)))

    def _measure(self, snapshot: Snapshot, now: datetime, started: float) -> None:
        self.last_cycle_at = self._monotonic()
        self.cycle_seconds = self.last_cycle_at - started
        self._metrics.cycle_seconds.observe(self.cycle_seconds)
        self._metrics.last_cycle.set(time.time())
        self._gauges.update(snapshot, now)
        self._price_names.check(snapshot)
