"""The age of a reading on the operator's clock, which need not agree with the agents' clocks.

The time of a reading is its time on the agent's clock plus the smallest delay among the node's
recent readings. The smallest delay is the difference between the clocks plus the transport time. A
reading that was delayed (by an interrupted watch) therefore does not look newer than it is.
"""

from collections import deque
from datetime import datetime, timedelta

# Delays remembered for each node. After an agent's clock was set forward, the next reading restores
# the estimate; after a longer transport time, this many do.
DELAYS_MAX = 16
# Clocks that are kept by the same sources differ by less.
CLOCKS_DIFFER_SECONDS = 5.0


class _Node:
    def __init__(self, observed_at: datetime, estimate: datetime | None) -> None:
        self.observed_at = observed_at
        # By the operator's clock, and moved with it.
        self.estimate = estimate
        # When the API server stored the reading, by its own clock: no reading is newer.
        self.written_at: datetime | None = None
        self.delays: deque[timedelta] = deque(maxlen=DELAYS_MAX)

    @property
    def moment(self) -> datetime | None:
        if self.estimate is None or self.written_at is None:
            return self.estimate
        return min(self.estimate, self.written_at)


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
        """When the reading with this agent time was taken, on the operator's clock; never in the
        future.

        The transport time of a node's first reading is unknown: `written_at`, when the API server
        stored it, bounds its age. Without it the agent's clock has to do, and of a reading that
        claims to be from the future nothing is known (None), because its agent may be dead.
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
            was_set_back = observed_at < known.observed_at
            if was_set_back:
                # The agent's clock, whose delays were measured on the old one, or the API server's
                # data: the reading may be from long ago, as a node's first one may.
                known.delays.clear()
            known.delays.append(now - observed_at)
            known.observed_at = observed_at
            known.estimate = min(observed_at + min(known.delays), now)
            known.written_at = written_at if was_set_back else None
        return known.moment

    def moment(self, node: str) -> datetime | None:
        """What `arrived` said last of the node, on the operator's clock as it is set now."""
        known = self._nodes.get(node)
        return None if known is None else known.moment

    def clock_moved(self, by: timedelta) -> None:
        """The operator's clock was set: all delays so far were measured by a wrong clock. When the
        API server stored a reading was not.
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
