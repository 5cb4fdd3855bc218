"""Virtual time: a queue of events, run one after the other. Nothing here waits for anything."""

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random

from tests.harness.builders import T0

Action = Callable[[], object]

# Of a seed there are some ten thousand.
ACTIONS_MAX = 5_000_000


class Clock:
    """Seconds since T0. Events at the same time run in the order in which they were set."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self._count = 0
        self._queue: list[tuple[float, int, Action]] = []

    @property
    def moment(self) -> datetime:
        return T0 + timedelta(seconds=round(self.now, 6))

    def after(self, seconds: float, action: Action) -> None:
        """Raises RuntimeError where actions bring about more and more of them."""
        self._count += 1
        if self._count > ACTIONS_MAX:
            raise RuntimeError(f"more than {ACTIONS_MAX} actions by {self.now:.0f} s")
        heapq.heappush(self._queue, (self.now + max(seconds, 0.0), self._count, action))

    def every(self, seconds: float, action: Callable[[], bool]) -> None:
        """Again and again until the action says False; first at a random part of the period."""

        def again() -> None:
            if action():
                self.after(seconds, again)

        self.after(self.random.uniform(0, seconds), again)

    def run_until(self, end: float, stop: Callable[[], bool] = lambda: False) -> None:
        while self._queue and self._queue[0][0] <= end and not stop():
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if not stop():
            self.now = max(self.now, end)
