"""Keeps the parts of the process running. A part that fails is restarted, and the others continue.

The pause before a restart grows with every failure, with jitter. The operator stays up meanwhile,
because the remaining parts are worth more than a clean start. If restarts do not help for longer
than a limit, `/healthz` fails and the kubelet restarts the process.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
# A part has recovered once it has run for this long.
STEADY_SECONDS = 60.0


@dataclass(slots=True)
class _Part:
    started_at: float
    failing_since: float | None = None
    failures: int = 0


class Supervisor:
    """The parts by name. It belongs to one event loop."""

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
        """Runs a part until cancelled, or until it ends if `may_end` returns True.

        Errors of the part are not raised.
        """
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
                log.error("part failed", part=name, problem=problem, with_traceback=True)
                if may_end():
                    return
            self._metrics.part_restarts.labels(name).inc()
            pause_seconds = self._failed(part)
            log.warning("part restarting", part=name, problem=problem, seconds=pause_seconds)
            await self._sleep(pause_seconds)

    def failing_seconds(self) -> Mapping[str, float]:
        """Returns the seconds for which each part has not run steadily. 0 for a steady part."""
        now = self._monotonic()
        return {name: self._failing_seconds(part, now) for name, part in self._parts.items()}

    def _failing_seconds(self, part: _Part, now: float) -> float:
        if part.failing_since is None or now - part.started_at >= STEADY_SECONDS:
            return 0.0
        return now - part.failing_since

    def _failed(self, part: _Part) -> float:
        """Records the failure. Returns the pause in seconds."""
        now = self._monotonic()
        if part.failing_since is None or now - part.started_at >= STEADY_SECONDS:
            part.failing_since, part.failures = now, 0
        pause = backoff_seconds(PAUSE_SECONDS, part.failures, PAUSE_SECONDS_MAX)
        part.failures += 1
        return jittered(pause)


@asynccontextmanager
async def background(*parts: Coroutine[Any, Any, Any]) -> AsyncGenerator[list[asyncio.Task[Any]]]:
    """Runs the parts until the block ends."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
