"""The waiting jobs of each queue in order, kept from cycle to cycle: thousands of them wait, and
few come, go, or become overdue in between."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.queue.order import OrderKey, OrderRules, turn_of
from gpujob_operator.decide.queue.pending import (
    KEY_OF,
    InOrder,
    Keyed,
    Pending,
    contender,
    order_rules,
)


@dataclass(slots=True)
class Lines:
    """`put` and `drop` as jobs come and go; the configuration is always the same one."""

    # By UID.
    entries: dict[str, Pending] = field(default_factory=dict[str, Pending])
    _queues: dict[str, list[Keyed]] = field(default_factory=dict[str, list[Keyed]])
    # The queue and key of each, by UID.
    _at: dict[str, tuple[str, OrderKey]] = field(default_factory=dict[str, tuple[str, OrderKey]])
    # Whose places are not, or no longer, true.
    _moved: set[str] = field(default_factory=set[str])
    _undated: set[str] = field(default_factory=set[str])
    # When the first of those who are on time becomes overdue.
    _due_seconds: float = inf
    _now_seconds: float = -inf

    @classmethod
    def of(cls, waiting: Iterable[Pending]) -> "Lines":
        lines = cls()
        for entry in waiting:
            lines.put(entry)
        return lines

    def put(self, entry: Pending) -> None:
        uid = entry.job.metadata.uid
        self.entries[uid] = entry
        self._moved.add(uid)

    def drop(self, uid: str) -> None:
        if self.entries.pop(uid, None) is not None:
            self._moved.add(uid)

    def in_order(self, configuration: Configuration, now: datetime) -> InOrder:
        """The pending jobs in order. Invalidates what earlier calls returned."""
        now_seconds = now.timestamp()
        if not self._now_seconds <= now_seconds < self._due_seconds:
            self._turn(now_seconds)
        self._now_seconds = now_seconds
        self._moved |= self._undated
        if self._moved:
            self._place_again(order_rules(configuration), now)
        return self._queues

    def _turn(self, now_seconds: float) -> None:
        """Notes who became overdue; or is on time again, as the clock was set back."""
        first, last = sorted((self._now_seconds, now_seconds))
        self._due_seconds = inf
        for uid, entry in self.entries.items():
            if entry.turn is None:
                continue
            due = entry.turn.due_seconds
            if first < due <= last:
                self._moved.add(uid)
            if due > now_seconds:
                self._due_seconds = min(self._due_seconds, due)

    def _place_again(self, rules: OrderRules, now: datetime) -> None:
        moved, self._moved, self._undated = self._moved, set(), set()
        for uid in moved:
            self._take_out(uid)
        for uid in moved & self.entries.keys():
            entry = self.entries[uid]
            queue, key = entry.job.spec.queue, self._key(uid, entry, rules, now)
            insort(self._queues.setdefault(queue, []), (key, entry), key=KEY_OF)
            self._at[uid] = queue, key

    def _take_out(self, uid: str) -> None:
        if uid not in self._at:
            return
        queue, key = self._at.pop(uid)
        line = self._queues[queue]
        del line[bisect_left(line, key, key=KEY_OF)]
        if not line:
            del self._queues[queue]

    def _key(self, uid: str, entry: Pending, rules: OrderRules, now: datetime) -> OrderKey:
        turn = entry.turn
        if turn is None:
            self._undated.add(uid)
            turn = turn_of(contender(entry.job, now), rules)
        if self._now_seconds < turn.due_seconds:
            self._due_seconds = min(self._due_seconds, turn.due_seconds)
        return turn.key(self._now_seconds)
