"""Keeps the parts of the process running: one that breaks is started again, the other ones go on.

A part that breaks again and again is started with growing pauses, never in step with others. The
operator stays up meanwhile: what works is worth more than a clean start. Only where starting again
does not help, for longer than a limit, `/healthz` tells the kubelet to end the process.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpujob_operator.logs import Log
from gpujob_operator.metrics import Metrics

log = Log(__name__)

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
# A part that ran for so long has recovered.
STEADY_SECONDS = 60.0


@dataclass(slots=True)
class _Part:
    started_at: float
    failing_since: float | None = None
    failures: int = 0


class Supervisor:
    """The parts by name. For one event loop."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._sleep = sleep
        self._parts: dict[str, _Part] = {}

    async def keep(
        self,
        name: str,
        run: Callable[[], Awaitable[object]],
        may_end: Callable[[], bool] = lambda: False,
    ) -> None:
        """Runs a part until cancelled, or until it ends when it `may_end`. Raises nothing of it."""
        part = self._parts[name] = _Part(self._monotonic())
        while True:
            part.started_at = self._monotonic()
            problem = "ended"
            try:
                await run()
                if may_end():
                    return
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"[:300]
                log.error("part broke", part=name, problem=problem, with_traceback=True)
                if may_end():
                    return
            self._metrics.part_restarts.labels(name).inc()
            pause_seconds = self._failed(part)
            log.warning("part starts again", part=name, problem=problem, seconds=pause_seconds)
            await self._sleep(pause_seconds)

    def failing_seconds(self) -> Mapping[str, float]:
        """For how long each part has not run steadily; 0 for one that does."""
        now = self._monotonic()
        return {name: self._failing_seconds(part, now) for name, part in self._parts.items()}

    def _failing_seconds(self, part: _Part, now: float) -> float:
        if part.failing_since is None or now - part.started_at >= STEADY_SECONDS:
            return 0.0
        return now - part.failing_since

    def _failed(self, part: _Part) -> float:
        """Takes note; how long to pause."""
        now = self._monotonic()
        if part.failing_since is None or now - part.started_at >= STEADY_SECONDS:
            part.failing_since, part.failures = now, 0
        ceiling = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** min(part.failures, 10))
        part.failures += 1
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - jitter
