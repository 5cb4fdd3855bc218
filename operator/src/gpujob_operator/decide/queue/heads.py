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
from math import inf
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
        yield from self._entitled(
            {name: self._lending(queue, waiting[name]) for name, queue in awaiting.items()}, waiting
        )
        others = {
            name: self._others(queue, waiting[name], borrowing[name])
            for name, queue in self.ordered.items()
        }
        yield from self._entitled(others, borrowing)
        yield from self._merged(waiting)
        yield from self._merged(borrowing)

    def _entitled(
        self, queues: Mapping[str, Iterator[Keyed]], borrowing: Mapping[str, list[Keyed]]
    ) -> Iterator[Pending]:
        """Jobs that do not borrow, unless others were placed since they became their queue's head:
        those are added to `borrowing`."""
        for name, head in self._turns(queues):
            if self._borrows(head):
                borrowing[name].append(head)
            else:
                yield head.pending

    def _lending(self, queue: Iterable[Keyed], borrowing: list[Keyed]) -> Iterator[Keyed]:
        """The jobs that do not borrow; the others are added to `borrowing`."""
        for head in queue:
            if self._borrows(head):
                borrowing.append(head)
            else:
                yield head

    def _others(
        self, queue: Iterable[Keyed], waiting: list[Keyed], borrowing: list[Keyed]
    ) -> Iterator[Keyed]:
        """The jobs that do not borrow and for which nobody is being stopped.

        Not those behind a job in `waiting`: what is becoming free is that job's. Nor those behind
        a borrower of their queue that has the higher priority: it would stop them at once, and is
        asked first. Both are added to `waiting`, where no other queue's borrowers come between.
        """
        ahead, is_behind = {head.key.uid for head in waiting}, False
        outranks = min((head.key.priority for head in waiting), default=inf)
        for head in queue:
            if _awaits_victims(head):
                is_behind = is_behind or head.key.uid in ahead
                continue
            if not is_behind and self._borrows(head):
                borrowing.append(head)
                continue
            if borrowing and borrowing[0].key.priority < head.key.priority:
                outranks = min(outranks, borrowing[0].key.priority)
                waiting += [one for one in borrowing if one.key.priority < head.key.priority]
                borrowing[:] = [one for one in borrowing if one.key.priority >= head.key.priority]
            if is_behind or outranks < head.key.priority:
                waiting.append(head)
            else:
                yield head

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
