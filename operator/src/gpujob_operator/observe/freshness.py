"""The age of a reading on the operator's clock, which need not agree with the agents' clocks.

The time of a reading is its time on the agent's clock plus the smallest delay among the node's
recent readings. The smallest delay is the difference between the clocks plus the transport time. A
reading that was delayed (by an interrupted watch) therefore does not look newer than it is.
"""

from collections import deque
from datetime import datetime, timedelta

# Delays remembered for each node. After a change of the agent's clock, this many readings restore
# the estimate.
DELAYS_MAX = 16


class _Node:
    def __init__(self, observed_at: datetime, moment: datetime) -> None:
        self.observed_at = observed_at
        self.moment = moment
        self.delays: deque[timedelta] = deque(maxlen=DELAYS_MAX)


class Freshness:
    """The time of the newest reading of each node, on the operator's clock."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def arrived(self, node: str, observed_at: datetime | None, now: datetime) -> datetime | None:
        """When the reading with this agent time was taken, on the operator's clock; never in the
        future.

        The transport time of the first reading is unknown, so the agent's clock is used.
        """
        if observed_at is None:
            return None
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Node(observed_at, min(observed_at, now))
            known.delays.append(now - observed_at)
        elif known.observed_at != observed_at:
            known.delays.append(now - observed_at)
            known.observed_at = observed_at
            known.moment = min(observed_at + min(known.delays), now)
        return known.moment

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)
