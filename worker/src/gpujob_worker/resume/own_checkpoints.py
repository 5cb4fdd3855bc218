"""Checks that a script's own checkpoints (`spec.checkpoint.path`) exist.

A path that matches nothing protects nothing, and that would go unnoticed until the first
interruption.
"""

import time
from collections.abc import Callable

from gpujob_api.report import Protection
from gpujob_worker.checkpoint.own_files import absolute, newest_checkpoint
from gpujob_worker.run.session import Session

# Seconds from the first step on. A script may save its first checkpoint much later, and is
# unprotected until then.
NOTHING_SECONDS = 300.0
# Seconds between two searches: at least this, and this many times the duration of the last one.
LOOK_SECONDS = 10.0
LOOK_PART = 50.0


class OwnCheckpoints:
    """Searches until a checkpoint exists."""

    def __init__(
        self, session: Session, pattern: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._pattern = pattern
        self._where = absolute(pattern, session.environment.checkpoint_directory)
        self._clock = clock
        self._trains_since: float | None = None
        self._next_look = 0.0
        self._found = False

    def look(self) -> None:
        """Called before each report."""
        session = self._session
        if self._found or session.rank or not session.meter.steps:
            return
        began = self._clock()
        if self._trains_since is None:
            self._trains_since = began
        # The last report of an interruption has what the next attempt will find.
        if began < self._next_look and not session.stop.requested:
            return
        newest = newest_checkpoint(self._where)
        took = self._clock() - began
        self._next_look = began + max(LOOK_SECONDS, LOOK_PART * took)
        if newest is not None:
            self._found = True
            kind = Protection.BEST_EFFORT
            session.log.note("protection", f"own checkpoint {newest.name}: {kind.value}")
            session.state.protected(kind, "the script's own checkpoints")
        elif began - self._trains_since >= NOTHING_SECONDS:
            session.state.protected(Protection.FROM_BEGINNING, self._nothing(began))

    def _nothing(self, now: float) -> str:
        assert self._trains_since is not None
        minutes = int((now - self._trains_since) / 60)
        return (
            f"nothing matches checkpoint.path ({self._pattern[:128]}) {minutes} minutes after the "
            f"first step: have the script save at {self._where[:128]}, or create the job again "
            "with the path of its files"
        )
