"""The waiting jobs of each queue in order, kept from cycle to cycle.

Thousands of jobs wait, and few come, go, or become overdue between cycles.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from math import inf

from sortedcontainers import SortedList

from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.waiting_time import arrival
from gpujob_operator.decide.queue.order import OrderKey, order_keys
from gpujob_operator.decide.queue.pending import (
    Keyed,
    OrderedQueues,
    Pending,
    order_entry,
    order_rules,
)


@dataclass(slots=True)
class PendingQueues:
    """The queues. `put` and `drop` jobs as they come and go. The configuration must never
    change.
    """

    # By UID.
    entries: dict[str, Pending] = field(default_factory=dict[str, Pending])
    _queues: "dict[str, SortedList[Keyed]]" = field(default_factory=dict)
    # The position of each job, by UID.
    _placed: dict[str, Keyed] = field(default_factory=dict[str, Keyed])
    # Jobs whose position is missing or outdated.
    _moved: set[str] = field(default_factory=set[str])
    _undated: set[str] = field(default_factory=set[str])
    # When the first job that is on time becomes overdue.
    _due_seconds: float = inf
    _now_seconds: float = -inf

    @classmethod
    def of(cls, waiting: Iterable[Pending]) -> "PendingQueues":
        queues = cls()
        for pending in waiting:
            queues.put(pending)
        return queues

    def put(self, entry: Pending) -> None:
        uid = entry.job.metadata.uid
        self.entries[uid] = entry
        self._moved.add(uid)

    def drop(self, uid: str) -> None:
        if self.entries.pop(uid, None) is not None:
            self._moved.add(uid)

    def in_order(self, configuration: Configuration, now: datetime) -> OrderedQueues:
        """Returns the pending jobs in order. Invalidates what earlier calls returned."""
        now_seconds = now.timestamp()
        if not self._now_seconds <= now_seconds < self._due_seconds:
            self._advance_clock(now_seconds)
        self._now_seconds = now_seconds
        self._moved |= self._undated
        if self._moved:
            self._place_again(configuration, now)
        return self._queues

    def _advance_clock(self, now_seconds: float) -> None:
        """Marks jobs that became overdue, or that are on time again because the clock was
        set back.
        """
        first, last = sorted((self._now_seconds, now_seconds))
        self._due_seconds = inf
        for uid, entry in self.entries.items():
            if entry.order_keys is None:
                continue
            due = entry.order_keys.due_seconds
            if first < due <= last:
                self._moved.add(uid)
            if due > now_seconds:
                self._due_seconds = min(self._due_seconds, due)

    def _place_again(self, configuration: Configuration, now: datetime) -> None:
        moved, self._moved, self._undated = self._moved, set(), set()
        for uid in moved:
            self._take_out(uid)
        found: dict[str, list[Keyed]] = {}
        for uid in moved & self.entries.keys():
            pending = self.entries[uid]
            key = self._key(uid, pending, configuration, now)
            placed = self._placed[uid] = Keyed(key, pending)
            found.setdefault(pending.job.spec.queue, []).append(placed)
        for queue, jobs in found.items():
            if queue not in self._queues:
                self._queues[queue] = SortedList()
            # `update` sorts many jobs at once, and inserts a few one by one.
            self._queues[queue].update(jobs)

    def _take_out(self, uid: str) -> None:
        placed = self._placed.pop(uid, None)
        if placed is None:
            return
        name = placed.pending.job.spec.queue
        self._queues[name].remove(placed)
        if not self._queues[name]:
            del self._queues[name]

    def _key(
        self, uid: str, entry: Pending, configuration: Configuration, now: datetime
    ) -> OrderKey:
        keys = entry.order_keys
        if keys is None:
            self._undated.add(uid)
            known = order_entry(entry.job, arrival(entry.job) or now, configuration)
            keys = order_keys(known, order_rules(configuration))
        if self._now_seconds < keys.due_seconds:
            self._due_seconds = min(self._due_seconds, keys.due_seconds)
        return keys.key(self._now_seconds)


# Maximum number of cached classes. Pending jobs keep their numbers.
CLASSES_MAX = 10_000


@dataclass(slots=True)
class EquivalenceClasses:
    """Numbers equivalence classes. `number` returns the number of a class, never 0.

    A number is never reused. A class that was dropped from the cache gets a new one.
    """

    number: Callable[[Hashable], int] = field(init=False)
    _last: int = 0

    def __post_init__(self) -> None:
        # `lru_cache` hashes a class only once per call, which is most of the work, and it is called
        # for every job.
        self.number = lru_cache(CLASSES_MAX)(self._next)

    def _next(self, _: Hashable) -> int:
        self._last += 1
        return self._last
