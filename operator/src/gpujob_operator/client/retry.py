"""Retries a call that failed for a transient reason: 429, 5xx or no answer. Bounded, with
jitter.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpujob_operator.client.api_errors import (
    RETRY_AFTER_SECONDS_MAX,
    ApiError,
    Throttled,
    Unavailable,
)
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered

ResultT = TypeVar("ResultT")

ATTEMPTS_MAX = 4
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 2.0


class Retry:
    """A bounded retry. Every write of the operator is safe to repeat.

    Names are deterministic, and patches have a resourceVersion.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        self.sleep = sleep
        self._uniform = uniform
        self._retried = retried

    async def run(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Returns the call's result. Raises the last error after `ATTEMPTS_MAX` tries."""
        for attempt in range(ATTEMPTS_MAX - 1):
            try:
                return await call()
            except (Throttled, Unavailable) as error:
                await self.pause(attempt, error)
                self._retried()
        return await call()

    async def pause(
        self, failures: int, error: ApiError | None = None, *, seconds_max: float | None = None
    ) -> None:
        """Waits after this many consecutive failures, or as long as the API server asks.

        The wait doubles up to `seconds_max`.
        """
        longest = BACKOFF_SECONDS_MAX if seconds_max is None else seconds_max
        pause = backoff_seconds(BACKOFF_SECONDS, failures, longest)
        await self.sleep(jittered(pause, self._uniform) + asked_seconds(error))


def asked_seconds(error: ApiError | None) -> float:
    """Returns the wait in seconds that the API server asks for (`Retry-After`), within bounds."""
    asked = error.retry_after_seconds if isinstance(error, Throttled) else None
    return min(asked or 0.0, RETRY_AFTER_SECONDS_MAX)
