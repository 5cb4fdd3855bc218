"""A quantile of the newest values."""

import math
from bisect import bisect_left, insort
from collections import deque


class RecentQuantile:
    """Quantiles of the newest `size` values. A new value costs O(log size) comparisons."""

    def __init__(self, size: int) -> None:
        self._newest: deque[float] = deque()
        self._size = size
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, value: float) -> None:
        if len(self._newest) == self._size:
            oldest = self._newest.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._newest.append(value)
        insort(self._ordered, value)

    def value(self, percent: float, default: float) -> float:
        """Returns the smallest value that at least `percent` percent do not exceed, or the
        default if there is none.
        """
        if not self._ordered:
            return default
        rank = math.ceil(len(self._ordered) * percent / 100)
        return self._ordered[max(0, min(rank, len(self._ordered)) - 1)]
