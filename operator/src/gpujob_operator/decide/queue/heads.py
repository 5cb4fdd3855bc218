"""Yields the pending jobs of all queues in order, one at a time, because shares grow as jobs are
placed.

The order: jobs within their queue's nominal quota before jobs that borrow; then by
`order.order_key`: priority, overdue waiting, the smaller share of the cohort and of the queue,
remaining work, arrival, UID. Within a queue no job overtakes an earlier one by that key.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.queue.pending import Keyed, OrderedQueues, Pending
from gpujob_operator.decide.queue.quota import QuotaState

MemoryOf = Callable[[Pending], int]


class _HeadKey(NamedTuple):
    """What the heads of queues are compared by: an `OrderKey` with the shares of the queue's parent
    and of the queue before the work. Overdue jobs are compared without shares."""

    borrows: bool
    priority: int
    on_time: bool
    due_seconds: float
    parent_share: float
    queue_share: float
    work_gpu_seconds: float
    arrived_seconds: float
    uid: str


@dataclass(slots=True)
class QueueHeads:
    """The heads of the queues. `memory_of` is what a job would reserve on each GPU, in bytes, if
    known: it decides whether the job's queue would borrow.
    """

    ordered: OrderedQueues
    queues: QuotaState
    size: ClusterSize
    memory_of: MemoryOf

    def __iter__(self) -> Iterator[Pending]:
        if len(self.ordered) == 1:
            # One queue takes no turns with others.
            (queue,) = self.ordered.values()
            for _, pending in queue:
                yield pending
            return
        following = {name: iter(queue) for name, queue in self.ordered.items()}
        heads = {name: next(queue) for name, queue in following.items()}
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
            yield heads[name].pending
            after = next(following[name], None)
            if after is None:
                heapq.heappop(heap)
                continue
            heads[name] = after
            heapq.heapreplace(heap, (self._key(name, after), name, self.queues.version))

    def _key(self, name: str, head: Keyed) -> _HeadKey:
        """The key of the queue's head."""
        key, pending = head
        shares = self.queues.shares(name, self.size) if key.on_time else (0.0, 0.0)
        return _HeadKey(
            self.queues.would_borrow(pending.job, self.memory_of(pending)),
            key.priority,
            key.on_time,
            key.due_seconds,
            *shares,
            key.work_gpu_seconds,
            key.arrived_seconds,
            key.uid,
        )
