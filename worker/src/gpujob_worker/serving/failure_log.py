"""Tracebacks of failing batches on standard error.

A client gets the class and the message of an error. The line of the script that raised it is in the
replica's log.
"""

import time
import traceback
from collections.abc import Callable

from gpujob_worker.run.standard_error import say

# A broken model fails at each request, and a poisoned request several times in a batch.
EVERY_SECONDS = 60.0
FRAMES_MAX = 20
CHARACTERS_MAX = 16_000


class FailureLog:
    """Prints at most one traceback a minute, with the number of those left out before it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = float("-inf")
        self._left_out = 0

    def failed(self, error: Exception) -> None:
        now = self._clock()
        if now < self._next_at:
            self._left_out += 1
            return
        lines = traceback.format_exception(error, limit=-FRAMES_MAX)
        text = "".join(lines).rstrip()[-CHARACTERS_MAX:]
        more = f"; {self._left_out} more failed since the last traceback" if self._left_out else ""
        say(f"gpujob: a batch failed (one traceback in {EVERY_SECONDS:g} s){more}\n{text}")
        self._next_at, self._left_out = now + EVERY_SECONDS, 0
