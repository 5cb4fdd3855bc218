"""How old an agent's reading is, by the operator's own clock.

A node's clock may be wrong by hours. What counts is when a *new* reading arrived here; only the
first one seen after a start is judged by the agent's clock, because it may be old already.
"""

from datetime import datetime


class Freshness:
    """The arrival time of the newest reading of each node."""

    def __init__(self) -> None:
        self._readings: dict[str, tuple[datetime, datetime]] = {}

    def arrived(self, node: str, observed_at: datetime | None, now: datetime) -> datetime | None:
        """When the reading with this agent time was new here; never in the future."""
        if observed_at is None:
            return None
        known = self._readings.get(node)
        if known is not None and known[0] == observed_at:
            return known[1]
        moment = now if known is not None else min(observed_at, now)
        self._readings[node] = (observed_at, moment)
        return moment

    def forget(self, node: str) -> None:
        self._readings.pop(node, None)
