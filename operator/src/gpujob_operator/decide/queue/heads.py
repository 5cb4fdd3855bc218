"""Yields the pending jobs of all queues in order, one at a time, because shares grow as jobs are
placed.

The order: jobs within their queue's nominal quota before jobs that borrow; then by
`order.order_key`: priority, overdue waiting, the smaller share of the cohort and of the queue,
remaining work, arrival, UID. Within a queue no job overtakes an earlier one by that key.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.queue.pending import Keyed, OrderedQueues, Pending
from gpujob_operator.decide.queue.quota import QuotaState

_Key = tuple[bool, int, bool, float, float, float, float, float, str]
MemoryOf = Callable[[Pending], int]


@dataclass(slots=True)
class QueueHeads:
    """The heads of the queues. `memory_of` is what a job would reserve on each GPU, in bytes, if
    known: it decides whether the job's queue would borrow.
    """

    lines: OrderedQueues
    queues: QuotaState
    fleet: ClusterSize
    memory_of: MemoryOf

    def __iter__(self) -> Iterator[Pending]:
        if len(self.lines) == 1:
            # Only one queue: no shares to compare.
            (line,) = self.lines.values()
            for _, entry in line:
                yield entry
            return
        following = {name: iter(line) for name, line in self.lines.items()}
        heads = {name: next(line) for name, line in following.items()}
        heap = [(self._key(name, heads[name]), name, self.queues.version) for name in heads]
        heapq.heapify(heap)
        while heap:
            _, name, version = heap[0]
            if version != self.queues.version:
                # Shares only grow during a pass, so a key that is still the smallest after it was
                # computed again is the true minimum (a lazy heap).
                key = self._key(name, heads[name])
                heapq.heapreplace(heap, (key, name, self.queues.version))
                continue
            yield heads[name][1]
            after = next(following[name], None)
            if after is None:
                heapq.heappop(heap)
                continue
            heads[name] = after
            heapq.heapreplace(heap, (self._key(name, after), name, self.queues.version))

    def _key(self, name: str, head: Keyed) -> _Key:
        """The key of the queue's head."""
        (priority, on_time, due, work, arrived, uid), entry = head
        borrows = self.queues.would_borrow(entry.job, self.memory_of(entry))
        if not on_time:
            return borrows, priority, on_time, due, 0.0, 0.0, work, arrived, uid
        shares = self.queues.shares(name, self.fleet)
        return borrows, priority, on_time, 0.0, *shares, work, arrived, uid
