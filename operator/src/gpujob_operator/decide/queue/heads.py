"""Yields the pending jobs of all queues in order, one at a time, because shares grow as jobs are
placed.

Between queues: first the jobs within what was promised to their queue, of each queue from its
first one on, then the jobs that borrow. So no job waits behind one of its own queue that can only
borrow, while other queues' borrowers take what it needs. Of either kind, jobs for which others are
being stopped come first: what these leave is theirs. Then: priority; the smaller share, of the root
with all below it and so on down to the queue; remaining work; arrival; UID. For how long a job is
overdue counts in its queue alone, so an old backlog takes no more than its weight.

In a queue the order is `order.order_key`, and no job overtakes an earlier one but as said above.
Whoever would stop a job at once is asked before it: so the higher priority of a queue comes before
what others are being stopped for, and a borrower before those of its queue that it outranks.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.queue.pending import Keyed, OrderedQueues, Pending
from gpujob_operator.decide.queue.quota import QuotaState

# What was last said of jobs that do not fit on the GPUs of the cluster.
_HOPELESS = (PendingReason.UNSATISFIABLE, PendingReason.NEEDS_NEW_NODE)

MemoryOf = Callable[[Pending], int]


class _HeadKey(NamedTuple):
    """What the heads of queues are compared by."""

    priority: int
    shares: tuple[float, ...]
    work_gpu_seconds: float
    arrived_seconds: float
    uid: str


@dataclass(slots=True)
class _Line:
    """What comes later of one queue, each in the order in which it was met."""

    # Jobs that do not borrow behind jobs of their queue that do, and these.
    waiting: list[Keyed] = field(default_factory=list[Keyed])
    # Other jobs that borrow: those for which others are being stopped, and those that outrank them.
    awaiting: list[Keyed] = field(default_factory=list[Keyed])
    # The rest.
    borrowing: list[Keyed] = field(default_factory=list[Keyed])
    # Those that could stop nobody, because more is in their way: nobody waits for them.
    hopeless: list[Keyed] = field(default_factory=list[Keyed])

    def is_behind(self, head: Keyed) -> bool:
        """Whether a job that does not borrow waits for one that does."""
        passed = (*self.waiting, *self.awaiting, *self.borrowing[:1])
        return any(_comes_first(one, head) for one in passed)

    def wait(self, head: Keyed) -> None:
        """Adds the job to those that wait, and whoever it waits for."""
        for later in (self.awaiting, self.borrowing):
            self.waiting += [one for one in later if _comes_first(one, head)]
            later[:] = [one for one in later if not _comes_first(one, head)]
        self.waiting.append(head)


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
        lines = {name: _Line() for name in self.ordered}
        parts = {name: _parted(queue) for name, queue in self.ordered.items()}
        yield from self._entitled(
            {
                name: self._lending(first, lines[name], lines[name].awaiting)
                for name, (first, _) in parts.items()
            },
            {name: line.awaiting for name, line in lines.items()},
        )
        yield from self._entitled(
            {
                name: self._lending(rest, lines[name], lines[name].borrowing)
                for name, (_, rest) in parts.items()
            },
            {name: line.borrowing for name, line in lines.items()},
        )
        yield from self._merged({name: line.waiting for name, line in lines.items()})
        yield from self._merged({name: line.awaiting for name, line in lines.items()})
        yield from self._merged(
            {name: [*line.borrowing, *line.hopeless] for name, line in lines.items()}
        )

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

    def _lending(
        self, queue: Iterable[Keyed], line: _Line, borrowing: list[Keyed]
    ) -> Iterator[Keyed]:
        """The jobs that neither borrow nor wait for one of their queue that does. The others are
        added to the line, where no other queue's borrowers come between."""
        for head in queue:
            if self._borrows(head):
                (line.hopeless if self._is_hopeless(head) else borrowing).append(head)
            elif line.is_behind(head):
                line.wait(head)
            else:
                yield head

    def _merged(self, queues: Mapping[str, Iterable[Keyed]]) -> Iterator[Pending]:
        ordered = {name: iter(sorted(queue)) for name, queue in queues.items()}
        for _, head in self._turns(ordered):
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

    def _is_hopeless(self, head: Keyed) -> bool:
        """Whether the job could not start although no other job of its queue ran."""
        last_reason = head.pending.last_reason
        if last_reason is not None and last_reason.reason in _HOPELESS:
            return True
        job, memory_bytes = head.pending.job, self.memory_of(head.pending)
        return not _awaits_victims(head) and self.queues.is_kept_out_by_others(job, memory_bytes)

    def _key(self, name: str, head: Keyed) -> _HeadKey:
        key = head.key
        return _HeadKey(
            key.priority,
            self.queues.shares(name, self.size),
            key.work_gpu_seconds,
            key.arrived_seconds,
            key.uid,
        )


def _parted(queue: Iterable[Keyed]) -> tuple[list[Keyed], list[Keyed]]:
    """The jobs for which others are being stopped, with those that would stop them at once because
    their priority is higher; and the rest."""
    heads = list(queue)
    # A smaller key is a higher priority.
    last = max((head.key.priority for head in heads if _awaits_victims(head)), default=None)
    if last is None:
        return [], heads
    first = [head for head in heads if head.key.priority < last or _awaits_victims(head)]
    rest = [head for head in heads if not (head.key.priority < last or _awaits_victims(head))]
    return first, rest


def _comes_first(one: Keyed, other: Keyed) -> bool:
    """Whether a borrower is asked before another job of its queue, which does not borrow: it would
    stop that one at once, or what is becoming free is its own."""
    if one.key.priority < other.key.priority:
        return True
    return _awaits_victims(one) and one.key < other.key


def _awaits_victims(head: Keyed) -> bool:
    """Whether others are being stopped, or were, so that the job can start."""
    last_reason = head.pending.last_reason
    return last_reason is not None and last_reason.reason == PendingReason.PREEMPTING
