"""How old a reading is, on our own clock: agents' clocks need not agree with it.

A reading's time on the agent's clock, plus the least delay with which one of the node's last
readings came in, is when it was taken. The least delay is the difference of the clocks and the way
here; what took longer (a watch that was cut off) does not look newer than it is.
"""

from collections import deque
from datetime import datetime, timedelta

# Delays remembered of each node: a clock that was set is believed again after so many readings.
DELAYS_MAX = 16


class _Node:
    def __init__(self, observed_at: datetime, moment: datetime) -> None:
        self.observed_at = observed_at
        self.moment = moment
        self.delays: deque[timedelta] = deque(maxlen=DELAYS_MAX)


class Freshness:
    """The time of the newest reading of each node."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def arrived(self, node: str, observed_at: datetime | None, now: datetime) -> datetime | None:
        """When the reading with this agent time was taken, on our clock; never in the future.

        Of the first one nobody knows how long it was under way: the agent's clock is believed.
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
