"""The age of a reading on the operator's clock, which need not agree with the agents' clocks.

The time of a reading is its time on the agent's clock plus the smallest delay among the node's
recent readings. The smallest delay is the difference between the clocks plus the transport time. A
delayed reading (after an interrupted watch) therefore does not look newer than it is.
"""

from collections import deque
from datetime import datetime, timedelta

# Delays kept for each node. After an agent's clock was set forward, the next reading corrects the
# estimate. After a longer transport time, this many readings do.
DELAYS_MAX = 16
# Clocks that are synchronized to the same sources differ by less.
CLOCKS_DIFFER_SECONDS = 5.0


class _Node:
    def __init__(self, observed_at: datetime, estimate: datetime | None) -> None:
        self.observed_at = observed_at
        # On the operator's clock, and moved with it.
        self.estimate = estimate
        # When the API server stored the reading, on its own clock. The reading cannot be newer.
        self.written_at: datetime | None = None
        # The reading is the first since the agent's clock was set, so its delay proves nothing.
        self.is_first = True
        self.delays: deque[timedelta] = deque(maxlen=DELAYS_MAX)

    @property
    def moment(self) -> datetime | None:
        if self.estimate is None or self.written_at is None or not self.is_first:
            return self.estimate
        return min(self.estimate, self.written_at)

    def clock_was_set(self, observed_at: datetime, written_at: datetime | None) -> bool:
        """Returns whether the delays of earlier readings cannot be used to time this reading.

        The agent's clock was set back, the API server's data was restored, or more time passed on
        the agent's clock than on the API server's.
        """
        if observed_at < self.observed_at:
            return True
        if written_at is None or self.written_at is None:
            return False
        ahead = (observed_at - self.observed_at) - (written_at - self.written_at)
        return ahead > timedelta(seconds=CLOCKS_DIFFER_SECONDS)


class Freshness:
    """The time of the newest reading of each node, on the operator's clock."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def arrived(
        self,
        node: str,
        observed_at: datetime | None,
        now: datetime,
        written_at: datetime | None = None,
    ) -> datetime | None:
        """Returns when the reading with this agent time was taken, on the operator's clock.

        The result is never in the future. The transport time is unknown for a node's first reading,
        and for the first after its agent's clock was set. `written_at`, when the API server stored
        it, bounds its age. Without it the agent's clock has to suffice. A node's first reading that
        claims to be from the future then has no known time (None), because its agent may be dead.
        """
        if observed_at is None:
            return None
        known = self._nodes.get(node)
        if known is None:
            estimate = _first(observed_at, now) if written_at is None else now
            known = self._nodes[node] = _Node(observed_at, estimate)
            known.written_at = written_at
            known.delays.append(now - observed_at)
        elif known.observed_at != observed_at:
            known.is_first = known.clock_was_set(observed_at, written_at)
            if known.is_first:
                # The reading may be from long ago, as a node's first one may.
                known.delays.clear()
            known.delays.append(now - observed_at)
            known.observed_at = observed_at
            known.estimate = min(observed_at + min(known.delays), now)
            known.written_at = written_at
        return known.moment

    def moment(self, node: str) -> datetime | None:
        """Returns the last result of `arrived` for the node, on the operator's present clock."""
        known = self._nodes.get(node)
        return None if known is None else known.moment

    def clock_moved(self, by: timedelta) -> None:
        """Corrects all delays by the step of the operator's clock, which was wrong before.

        The times at which the API server stored readings are unaffected.
        """
        for known in self._nodes.values():
            known.delays = deque((delay + by for delay in known.delays), DELAYS_MAX)
            known.estimate = None if known.estimate is None else known.estimate + by

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)


def _first(observed_at: datetime, now: datetime) -> datetime | None:
    if observed_at > now + timedelta(seconds=CLOCKS_DIFFER_SECONDS):
        return None
    return min(observed_at, now)
