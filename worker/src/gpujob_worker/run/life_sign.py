"""When the training last moved: a step, a backward pass, or a batch of an evaluation.

Steps alone do not show that an evaluation is alive, which may take longer than the time after which
a job counts as hung.
"""

import time
from collections.abc import Callable


class LifeSign:
    """The training calls `seen`, and any thread reads `idle_seconds`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen_at: float | None = None

    def seen(self) -> None:
        self._seen_at = self._clock()

    @property
    def idle_seconds(self) -> float | None:
        """The seconds since the newest sign, or None before the first."""
        return None if self._seen_at is None else self._clock() - self._seen_at
