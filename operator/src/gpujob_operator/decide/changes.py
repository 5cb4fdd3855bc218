"""What differs between two pictures, found without looking into what stayed the same.

Observed objects are immutable and replaced only when they changed, so that the identity of an
object tells whether to look at it. A picture of twenty thousand objects costs milliseconds.
"""

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Roll(Generic[T]):
    """The objects of one kind that were there last time."""

    _items: tuple[T, ...] = ()
    # By identity; kept here, so that no identity is given to another object.
    _present: dict[int, T] = field(default_factory=lambda: dict[int, T]())

    def take(self, items: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """(new, gone) since the last time, each in its picture's order."""
        if items is self._items:
            return [], []
        before, after = self._present, dict(zip(map(id, items), items, strict=True))
        self._items, self._present = items, after
        return _without(after, before), _without(before, after)


def _without(some: dict[int, T], others: dict[int, T]) -> list[T]:
    """What is not among the others, in order. Mostly there is next to nothing, and comparing the
    keys alone touches no object."""
    keys = some.keys() - others.keys()
    return [some[key] for key in some if key in keys] if keys else []


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

    def drop(self, keys: Iterable[K]) -> None:
        for key in keys:
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
