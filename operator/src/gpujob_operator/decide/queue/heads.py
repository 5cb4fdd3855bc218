"""Yields the pending jobs of all queues in order.

It yields one job at a time, because shares grow as jobs are placed.

Entitled jobs come first. These are within what was promised to their queue, and each queue yields
them from its head on. Jobs that borrow follow. A job therefore never waits behind a borrower of its
own queue while other queues' borrowers take what it needs.

Within each kind, jobs for which others are being stopped come first, because the capacity that
these leave is meant for them. The next criteria are priority, share, remaining work, arrival and
UID. The smaller share comes first. It is compared for the root with all queues below it and so on
down to the queue. How long a job is overdue counts only within its queue, so an old backlog takes
no more than its weight.

The order within a queue is `order.order_key`, and no job overtakes an earlier one except as
described above. A job that would stop another job at once is asked before it. A higher priority of
a queue therefore comes before a job that waits for victims, and a borrower comes before the jobs of
its queue that it outranks.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.queue.pending import Keyed, OrderedQueues, Pending
from gpujob_operator.decide.queue.quota import QuotaState

# Last reasons of jobs that do not fit on the GPUs of the cluster.
_HOPELESS = (PendingReason.UNSATISFIABLE, PendingReason.NEEDS_NEW_NODE)
# Shown reasons of jobs that cannot start for a while, and whose waiting time counts.
_NOT_NOW = (PendingReason.BACKING_OFF, PendingReason.PREVIOUS_ATTEMPT_TERMINATING)

MemoryOf = Callable[[Pending], int]


class _HeadKey(NamedTuple):
    """The key by which heads of queues are compared."""

    priority: int
    shares: tuple[float, ...]
    work_gpu_seconds: float
    arrived_seconds: float
    uid: str


@dataclass(slots=True)
class _Line:
    """The jobs of one queue that are yielded later, each list in the order in which
    they were met.
    """

    # Entitled jobs behind borrowers of their queue, together with these borrowers.
    waiting: list[Keyed] = field(default_factory=list[Keyed])
    # Borrowers for which others are being stopped, and borrowers that outrank those.
    awaiting: list[Keyed] = field(default_factory=list[Keyed])
    # All other borrowers.
    borrowing: list[Keyed] = field(default_factory=list[Keyed])
    # Jobs that could not start even if they stopped others. No job waits for them.
    hopeless: list[Keyed] = field(default_factory=list[Keyed])

    def is_behind(self, head: Keyed) -> bool:
        """Returns whether an entitled job waits for a borrower."""
        passed = (*self.waiting, *self.awaiting, *self.borrowing[:1])
        return any(_comes_first(one, head) for one in passed)

    def wait(self, head: Keyed) -> None:
        """Adds the job to `waiting`, after the borrowers that it waits for."""
        for later in (self.awaiting, self.borrowing):
            self.waiting += [one for one in later if _comes_first(one, head)]
            later[:] = [one for one in later if not _comes_first(one, head)]
        self.waiting.append(head)


@dataclass(slots=True)
class QueueHeads:
    """The heads of the queues.

    `memory_of` returns what a job would reserve on each GPU, in bytes, if that is known. It decides
    whether the job's queue would borrow. `is_starved` returns whether a job has waited so long that
    it is not overtaken by jobs with the same right.
    """

    ordered: OrderedQueues
    queues: QuotaState
    size: ClusterSize
    memory_of: MemoryOf
    is_starved: Callable[[GPUJob], bool] = lambda _: False

    def __iter__(self) -> Iterator[Pending]:
        if len(self.ordered) == 1:
            # A single queue takes no turns with others.
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
        """Yields entitled jobs.

        A job that became a borrower because others were placed while it was its queue's head is
        added to `borrowing` instead.
        """
        for name, head in self._turns(queues):
            if self._borrows(head):
                borrowing[name].append(head)
            else:
                yield head.pending

    def _lending(
        self, queue: Iterable[Keyed], line: _Line, borrowing: list[Keyed]
    ) -> Iterator[Keyed]:
        """Yields the jobs that neither borrow nor wait for a borrower of their queue.

        The others are added to the line, where no other queue's borrowers come between them.
        """
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
        """Yields the jobs of the queues, merged by the heads' keys, with their queue's name."""
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
                # Shares only grow during a pass. A recomputed key that is still the smallest is
                # therefore the true minimum (a lazy heap).
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
        """Returns whether the job has its turn after the entitled jobs."""
        job, memory_bytes = head.pending.job, self.memory_of(head.pending)
        if not self.queues.would_borrow(job, memory_bytes):
            return False
        # A starved job is not overtaken by others that use what it shares with them. It cannot be
        # placed in this cycle, so its turn takes nothing from entitled jobs.
        keeps_turn = (
            self.is_starved(job)
            and not self._is_unable(head)
            and self.queues.lacking(job, memory_bytes)
            and self.queues.has_equal_right(job, memory_bytes, borrows=False)
        )
        return not keeps_turn

    def _is_hopeless(self, head: Keyed) -> bool:
        """Returns whether the job could not start even if no other job of its queue ran."""
        if self._is_unable(head):
            return True
        job, memory_bytes = head.pending.job, self.memory_of(head.pending)
        return not _awaits_victims(head) and self.queues.is_kept_out_by_others(job, memory_bytes)

    def _is_unable(self, head: Keyed) -> bool:
        """Returns whether the job could not start now on any GPUs and with any quota."""
        last_reason = head.pending.last_reason
        if _is_ineligible(head.pending.job) or self.queues.refusal(head.pending.job):
            return True
        return last_reason is not None and last_reason.reason in _HOPELESS

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
    """Splits a queue into the jobs that come first and the rest.

    The first part has the jobs for which others are being stopped, and the jobs of higher priority,
    which would stop them at once.
    """
    heads = list(queue)
    # A smaller key is a higher priority.
    last = max((head.key.priority for head in heads if _awaits_victims(head)), default=None)
    if last is None:
        return [], heads
    first = [head for head in heads if head.key.priority < last or _awaits_victims(head)]
    rest = [head for head in heads if not (head.key.priority < last or _awaits_victims(head))]
    return first, rest


def _comes_first(one: Keyed, other: Keyed) -> bool:
    """Returns whether a borrower comes before an entitled job of its queue.

    It does if it would stop that job at once, or if the capacity that is becoming free is its own.
    """
    if one.key.priority < other.key.priority:
        return True
    return _awaits_victims(one) and one.key < other.key


def _is_ineligible(job: GPUJob) -> bool:
    """Returns whether the job could not start now, whatever ran.

    For some reasons, that is as its condition shows it.
    """
    if job.spec.suspend or job.status.held_back_since is not None:
        return True
    shown = find(job.status, SCHEDULED)
    return shown is not None and shown.reason in _NOT_NOW


def _awaits_victims(head: Keyed) -> bool:
    """Returns whether others are being, or were, stopped so that the job can start.

    A job that waits for others that stop for a reason of their own has its usual turn. With an
    earlier one, it would choose before the jobs that it lets pass now, and the jobs would take
    turns.
    """
    job, last_reason = head.pending.job, head.pending.last_reason
    if last_reason is None or last_reason.reason != PendingReason.PREEMPTING:
        return False
    stopped = job.status.others_stopped
    return stopped is not None and stopped.attempt == job.status.attempt
