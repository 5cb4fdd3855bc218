"""The line of waiting jobs, told one at a time: shares of queues grow while jobs are placed.

Who is next, compared in this order: jobs within their queue's nominal quota before those that
borrow; then as `order.order_key` says: priority, overdue waiting, the smaller share of the queue's
parent and of the queue, work left, arrival, UID. Within a queue nobody passes who comes later by
that key.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.capacity import FleetSize
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.order import OrderKey, OrderRules, Turn, turn_of
from gpujob_operator.decide.queueing import Queues, contender
from gpujob_operator.decide.snapshot import PodView
from gpujob_operator.decide.waiting import Told


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without cards. Its pods, if any, are remains of an earlier attempt."""

    job: GPUJob
    pods: tuple[PodView, ...] = ()
    # Jobs of one kind fit, or do not, together and have the same rights; 0: nobody knows.
    kind: int = 0
    told: Told | None = None
    turn: Turn | None = None


def order_rules(configuration: Configuration) -> OrderRules:
    return OrderRules(
        policy=configuration.order_policy,
        waiting_seconds_max=configuration.waiting_seconds_max,
        stretch_max=configuration.waiting_stretch_max,
    )


_Key = tuple[bool, int, bool, float, float, float, float, float, str]
MemoryOf = Callable[[Pending], int]


@dataclass(slots=True)
class Line:
    """Iterate once. `memory_of` is what a job would hold of each card, in bytes, as far as known:
    it decides whether the job's queue would borrow."""

    queues: Queues
    fleet: FleetSize
    memory_of: MemoryOf
    _queue_lines: dict[str, list[tuple[OrderKey, Pending]]]

    @classmethod
    def of(
        cls,
        waiting: Iterable[Pending],
        queues: Queues,
        fleet: FleetSize,
        memory_of: MemoryOf,
        configuration: Configuration,
        now: datetime,
    ) -> "Line":
        rules = order_rules(configuration)
        now_seconds = now.timestamp()
        lines: defaultdict[str, list[tuple[OrderKey, Pending]]] = defaultdict(list)
        for entry in waiting:
            turn = entry.turn or turn_of(contender(entry.job, now), rules)
            lines[entry.job.spec.queue].append((turn.key(now_seconds), entry))
        for line in lines.values():
            # The best at the end, where it is taken off; keys end with the UID and never tie.
            line.sort(key=itemgetter(0), reverse=True)
        return cls(queues, fleet, memory_of, lines)

    def __iter__(self) -> Iterator[Pending]:
        if len(self._queue_lines) == 1:
            # Nobody to take turns with.
            (line,) = self._queue_lines.values()
            while line:
                yield line.pop()[1]
            return
        heap = [(self._key(name), name, self.queues.version) for name in self._queue_lines]
        heapq.heapify(heap)
        while heap:
            _, name, version = heap[0]
            if version != self.queues.version:
                # Uses only grow while jobs are placed, and keys with them: what was the least and
                # still is when asked again is the least of all.
                heapq.heapreplace(heap, (self._key(name), name, self.queues.version))
                continue
            line = self._queue_lines[name]
            yield line.pop()[1]
            if line:
                heapq.heapreplace(heap, (self._key(name), name, self.queues.version))
            else:
                heapq.heappop(heap)

    def _key(self, name: str) -> _Key:
        """The key of the queue's next job."""
        (priority, on_time, due, work, arrived, uid), entry = self._queue_lines[name][-1]
        borrows = self.queues.would_borrow(entry.job, self.memory_of(entry))
        if not on_time:
            return borrows, priority, on_time, due, 0.0, 0.0, work, arrived, uid
        shares = self.queues.shares(name, self.fleet)
        return borrows, priority, on_time, 0.0, *shares, work, arrived, uid
