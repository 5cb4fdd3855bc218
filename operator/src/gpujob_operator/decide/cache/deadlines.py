"""The first of many deadlines, each of which may move."""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Deadlines(Generic[K]):
    """At most one moment for each key, the earliest found at once."""

    _at: dict[K, datetime] = field(default_factory=lambda: dict[K, datetime]())
    # With moments that hold no longer; `_at` tells which.
    _heap: list[tuple[datetime, K]] = field(default_factory=lambda: list[tuple[datetime, K]]())

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: K, moment: datetime) -> None:
        """Replaces the key's moment."""
        if self._at.get(key) == moment:
            return
        self._at[key] = moment
        heapq.heappush(self._heap, (moment, key))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, one) for one, at in self._at.items()]
            heapq.heapify(self._heap)

    def drop(self, key: K) -> None:
        self._at.pop(key, None)

    @property
    def first(self) -> datetime | None:
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: datetime) -> list[K]:
        """Takes out the keys whose moment is now or past."""
        found: list[K] = []
        while (first := self.first) is not None and first <= now:
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            found.append(key)
        return found
