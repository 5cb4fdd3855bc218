"""Yields the pending jobs of all queues in order, one at a time, because shares grow as jobs are
placed.

Between queues: first the jobs within what was promised to their queue, of each queue from its
first one on, then the jobs that borrow. So no job waits behind one of its own queue that can only
borrow, while other queues' borrowers take what it needs. Of either kind, jobs for which others are
being stopped come first: what these leave is theirs. Then: priority; the smaller share, of the root
with all below it and so on down to the queue; remaining work; arrival; UID. For how long a job is
overdue counts in its queue alone, so an old backlog takes no more than its weight.

In a queue the order is `order.order_key`, and no job overtakes an earlier one but as said above.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.queue.pending import Keyed, OrderedQueues, Pending
from gpujob_operator.decide.queue.quota import QuotaState

MemoryOf = Callable[[Pending], int]


class _HeadKey(NamedTuple):
    """What the heads of queues are compared by."""

    priority: int
    shares: tuple[float, ...]
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
        awaiting = {
            name: [head for head in queue if _awaits_victims(head)]
            for name, queue in self.ordered.items()
        }
        waiting: dict[str, list[Keyed]] = {name: [] for name in self.ordered}
        borrowing: dict[str, list[Keyed]] = {name: [] for name in self.ordered}
        yield from self._entitled(awaiting, waiting)
        others = {
            name: _others(queue, waiting[name]) if awaiting[name] else queue
            for name, queue in self.ordered.items()
        }
        yield from self._entitled(others, borrowing)
        yield from self._merged(waiting)
        yield from self._merged(borrowing)

    def _entitled(
        self, queues: Mapping[str, Iterable[Keyed]], borrowing: Mapping[str, list[Keyed]]
    ) -> Iterator[Pending]:
        """The jobs that do not borrow at their turn; the others are added to `borrowing`."""

        def of(name: str, queue: Iterable[Keyed]) -> Iterator[Keyed]:
            for head in queue:
                if self._borrows(head):
                    borrowing[name].append(head)
                else:
                    yield head

        following = {name: of(name, queue) for name, queue in queues.items()}
        for name, head in self._turns(following):
            # Others were placed since it became its queue's head.
            if self._borrows(head):
                borrowing[name].append(head)
            else:
                yield head.pending

    def _merged(self, queues: Mapping[str, Iterable[Keyed]]) -> Iterator[Pending]:
        for _, head in self._turns({name: iter(queue) for name, queue in queues.items()}):
            yield head.pending

    def _turns(self, following: Mapping[str, Iterator[Keyed]]) -> Iterator[tuple[str, Keyed]]:
        """The jobs of the queues, merged: the queues' turns, and what is next in each."""
        heads = {
            name: head
            for name, queue in following.items()
            if (head := next(queue, None)) is not None
        }
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
            yield name, heads[name]
            after = next(following[name], None)
            if after is None:
                heapq.heappop(heap)
                continue
            heads[name] = after
            heapq.heapreplace(heap, (self._key(name, after), name, self.queues.version))

    def _borrows(self, head: Keyed) -> bool:
        return self.queues.would_borrow(head.pending.job, self.memory_of(head.pending))

    def _key(self, name: str, head: Keyed) -> _HeadKey:
        key = head.key
        return _HeadKey(
            key.priority,
            self.queues.shares(name, self.size),
            key.work_gpu_seconds,
            key.arrived_seconds,
            key.uid,
        )


def _awaits_victims(head: Keyed) -> bool:
    """Whether others are being stopped, or were, so that the job can start."""
    last_reason = head.pending.last_reason
    return last_reason is not None and last_reason.reason == PendingReason.MAKING_ROOM


def _others(queue: Iterable[Keyed], waiting: list[Keyed]) -> Iterator[Keyed]:
    """Those for which nobody is being stopped. Those behind a job in `waiting`, which borrows, are
    added there: what is becoming free is that job's, and no priority of others comes between."""
    ahead, is_behind = {head.key.uid for head in waiting}, False
    for head in queue:
        if _awaits_victims(head):
            is_behind = is_behind or head.key.uid in ahead
        elif is_behind:
            waiting.append(head)
        else:
            yield head
