"""What differs between two pictures, found without looking into what stayed the same.

Observed objects are immutable and replaced only when they changed, so that the identity of an
object tells whether to look at it. A picture of twenty thousand objects costs milliseconds.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress, count
from operator import is_not
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# Objects that went away side by side are found by looking so far ahead.
AHEAD = 32


@dataclass(slots=True)
class Roll(Generic[T]):
    """The objects of one kind that were there last time."""

    # Kept here, so that no identity is given to another object.
    _items: tuple[T, ...] = ()

    def take(self, items: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """(new, gone) since the last time, each in its picture's order."""
        before, self._items = self._items, items
        if items is before:
            return [], []
        new, gone = _compare(before, items)
        both = set(map(id, new)) & set(map(id, gone))
        if not both:
            return new, gone
        # What is only elsewhere.
        return [x for x in new if id(x) not in both], [x for x in gone if id(x) not in both]


def _compare(before: tuple[T, ...], after: tuple[T, ...]) -> tuple[list[T], list[T]]:
    """What is not the same in the same place, in one pass without a look into any object: from one
    picture to the next, objects are replaced where they are, go away, or come, mostly at the end.
    In any other order there is more of it, with some in both lists."""
    new: list[T] = []
    gone: list[T] = []
    old, now = iter(before), iter(after)
    # Objects that the other picture passed over.
    left = came = 0
    for pair in compress(count(), map(is_not, old, now)):
        first, second = pair + left, pair + came
        ahead = _find(after[second], before[first + 1 : first + 1 + AHEAD])
        behind = 0 if ahead else _find(before[first], after[second + 1 : second + 1 + AHEAD])
        gone += before[first : first + (ahead or 1 - bool(behind))]
        new += after[second : second + (behind or 1 - bool(ahead))]
        # The pairs go on behind those that were passed over.
        left, came = left + _skip(old, ahead), came + _skip(now, behind)
    pairs = min(len(before) - left, len(after) - came)
    return new + list(after[pairs + came :]), gone + list(before[pairs + left :])


def _skip(items: Iterator[T], number: int) -> int:
    for _ in range(number):
        next(items)
    return number


def _find(item: T, others: tuple[T, ...]) -> int:
    """Which of the others is this very item, counted from 1; 0: none."""
    for number, other in enumerate(others, 1):
        if other is item:
            return number
    return 0


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
