"""The operator's time: that of the API server, whatever the wall clock of this machine says.

Times in objects are compared across leaders, nodes and the API server, so a leader whose wall clock
is an hour wrong would time out every attempt that starts. The clock is set from the answers of the
API server until this process leads, and then runs with the monotonic clock: a step of any wall
clock does not move it. Whoever becomes the leader sets it again.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# The `Date` of an answer is in whole seconds, and the answer takes its time. Up to this difference
# the machine's own clock is good enough.
TOLERANCE_SECONDS = 5.0


class ClusterClock:
    """`now` is cheap, and never goes back while this process leads.

    `moved` gets by how much the clock was set where that is more than the tolerance: what was
    measured by the clock before was measured wrongly.
    """

    def __init__(
        self,
        wall: Callable[[], datetime],
        monotonic: Callable[[], float],
        moved: Callable[[timedelta], None] = lambda by: None,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._held = False
        self._moved = moved
        self._at, self._since = wall(), monotonic()

    def now(self) -> datetime:
        return self._at + timedelta(seconds=self._monotonic() - self._since)

    def hold(self, held: bool) -> None:
        """While it is held, no answer sets it: this process leads."""
        self._held = held

    def heard(self, date: str | None) -> None:
        """Takes the `Date` header of an answer of the API server. Any text is accepted."""
        served = _time(date)
        if served is None or self._held:
            return
        before, wall = self.now(), self._wall()
        wrong_seconds = (wall - served).total_seconds()
        if abs(wrong_seconds) > TOLERANCE_SECONDS:
            log.warning("wall clock differs from the API server's", seconds=round(wrong_seconds))
        self._at = served if abs(wrong_seconds) > TOLERANCE_SECONDS else wall
        self._since = self._monotonic()
        by = self.now() - before
        if abs(by.total_seconds()) > TOLERANCE_SECONDS:
            self._moved(by)


def _time(date: str | None) -> datetime | None:
    try:
        served = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    return served if served.tzinfo is not None else served.replace(tzinfo=UTC)
