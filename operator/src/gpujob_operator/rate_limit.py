"""How often something may happen: a token bucket."""


class RateLimit:
    """Allows `burst` times at once, and `per_second` on average. Times are seconds of one clock."""

    __slots__ = ("_burst", "_left", "_per_second", "_updated")

    def __init__(self, now: float, *, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._updated = now

    def take(self, now: float) -> bool:
        """Returns whether it may happen now. If so, it is counted."""
        if self.seconds_left(now) > 0:
            return False
        self._left -= 1
        return True

    def spend(self, now: float) -> None:
        """Counts an occurrence, whether it was allowed or not."""
        self._refill(now)
        self._left -= 1

    def earn(self, times: float) -> None:
        """Allows this many more times, up to `burst` at once."""
        self._left = min(self._burst, self._left + times)

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until it may happen. 0 if it may happen now."""
        self._refill(now)
        return max((1 - self._left) / self._per_second, 0.0)

    def _refill(self, now: float) -> None:
        refill = (now - self._updated) * self._per_second
        self._left = min(self._burst, self._left + refill)
        self._updated = now
