"""The first of many deadlines, each of which may move, and keys that expire."""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar


class _Key(Hashable, Protocol):
    """A hashable key that can also be sorted."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Key)


@dataclass(slots=True)
class Deadlines(Generic[K]):
    """At most one moment per key. The earliest is found immediately."""

    _at: dict[K, datetime] = field(default_factory=lambda: dict[K, datetime]())
    # Includes outdated moments. `_at` has the current ones.
    _heap: list[tuple[datetime, K]] = field(default_factory=lambda: list[tuple[datetime, K]]())

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: K, moment: datetime) -> None:
        """Sets or replaces the key's moment."""
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
        """Removes and returns the keys whose moment is now or past."""
        found: list[K] = []
        while (first := self.first) is not None and first <= now:
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            found.append(key)
        return found


@dataclass(slots=True)
class Expiries(Generic[K]):
    """Keys that are due from a moment on, in every cycle until they are replaced or dropped."""

    _later: Deadlines[K] = field(default_factory=lambda: Deadlines[K]())
    _now: set[K] = field(default_factory=lambda: set[K]())

    def put(self, key: K, moment: datetime | None) -> None:
        """Replaces the key's moment. None: the key never expires."""
        self.drop(key)
        if moment is not None:
            self._later.put(key, moment)

    def drop(self, key: K) -> None:
        self._later.drop(key)
        self._now.discard(key)

    def due(self, now: datetime) -> list[K]:
        """Returns the keys that have expired, sorted."""
        self._now.update(self._later.due(now))
        return sorted(self._now)

    @property
    def next_at(self) -> datetime | None:
        """When the first key that has not expired yet expires."""
        return self._later.first
