"""Leaves the GPU idle for a share of the time, for a service on it that would answer too late.

A training yields between two parts of a step: before a backward pass, and after an optimizer's
step. In an evaluation it yields before the next batch. Nothing of what it learns depends on that.
The time counts as the worker's own, so no step time, speed-up or slowdown includes it.
"""

import time
from collections.abc import Callable

from gpujob_worker.run.meter import Meter

# At once, so that neither a stop nor a process that trains along waits for long.
PAUSE_SECONDS_MAX = 0.5


class Yielding:
    """The pauses of one process. Its training calls `boundary`, and any thread calls `ask`."""

    def __init__(
        self,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._meter = meter
        self._clock = clock
        self._sleep = sleep
        # The share in percent, and when it ends.
        self._asked = (0, 0.0)
        # When the part of a step began that is under way, while a share is in force.
        self._since: float | None = None
        # The sum of all pauses. None while it is unknown whether the process makes any.
        self.seconds: float | None = None

    def ask(self, percent: int, seconds: float) -> None:
        """Sets the share of its time that the process yields during the next `seconds`."""
        self._asked = percent, self._clock() + seconds

    def boundary(self) -> None:
        """Called between two parts of a step. Pauses for the share of the part that has ended, and
        for at most `PAUSE_SECONDS_MAX`.
        """
        self.seconds = self.seconds or 0.0
        percent, until = self._asked
        since, self._since = self._since, None
        if not percent or self._clock() >= until:
            return
        if self._device_is_done() and since is not None:
            seconds = (self._clock() - since) * percent / (100 - percent)
            seconds = min(PAUSE_SECONDS_MAX, seconds)
            with self._meter.paused():
                self._sleep(seconds)
            self.seconds += seconds
        self._since = self._clock()

    def _device_is_done(self) -> bool:
        """Waits until the device has done what was launched, which would run during the pause
        otherwise. Returns False if that cannot be waited for, because the script captures a graph.
        """
        events = self._meter.events
        if events is None:
            return True
        mark = events.mark()
        if mark is None:
            return False
        events.wait(mark)
        return True
