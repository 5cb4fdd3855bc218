"""The operator's time: the API server's, whatever this machine's wall clock shows.

Times in objects are compared across leaders, nodes and the API server. A leader with a wall clock
that is an hour wrong would time out every attempt that starts. The clock is set from answers of the
API server until this process leads, and then runs with the monotonic clock, so a step of any wall
clock does not move it. The next leader sets its clock again.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# The `Date` of an answer is in whole seconds, and the answer takes time to arrive. The machine's
# own clock is good enough up to this difference.
TOLERANCE_SECONDS = 5.0


class ClusterClock:
    """A clock. `now` is cheap, and never goes back while this process leads.

    `moved` is called with the step if the clock was set by more than the tolerance. Earlier
    measurements by this clock were wrong by that step.
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
        """Holds the clock, so that no answer sets it while this process leads."""
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
