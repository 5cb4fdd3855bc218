"""What the queues use of their quotas, which queues borrow, and which queues give back.

A queue may always have what is promised to it. That is its nominal quota, or if it has none, the
part of its parent's quota that its siblings' quotas leave. Beyond that the queue borrows idle
quota, up to its limit and the limits of the queues above it. Borrowed quota is given back: jobs
within their queue's promise come first, and jobs of a borrowing queue are stopped for them (see
`preemption`). `tree` has the figures. docs/design/0027 has the rule.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, Reservation
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue, GPUQueueStatus
from gpujob_api.meta import MESSAGE_CHARACTERS_MAX, Condition, Conditions, ConditionStatus
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.model.conditions import ACCEPTED, find
from gpujob_operator.decide.model.held_gpus import queue_of
from gpujob_operator.decide.model.plan import WriteQueueStatus
from gpujob_operator.decide.queue.pending import Pending
from gpujob_operator.decide.queue.tree import QueueTree

_NEVER = "it never starts with this quota; raise nominal or borrowingLimit of the GPUQueue"
# The counted resources, as indexes of `Bounds`.
_GPUS, _MEMORY = 0, 1


@dataclass(slots=True)
class QueueUse:
    """What the running jobs of a queue use."""

    jobs: int = 0
    gpus: int = 0
    memory_bytes: int = 0

    def __getitem__(self, kind: int) -> int:
        return self.memory_bytes if kind else self.gpus

    def count(self, job: GPUJob, status: GPUJobStatus, sign: int = 1) -> None:
        """Adds the job's use by this status. A `sign` of -1 subtracts it."""
        if status.placement is None or status.reservation is None:
            return
        gpus = sum(len(worker.gpus) for worker in status.placement.workers)
        self.jobs += sign
        self.gpus += sign * gpus
        self.memory_bytes += sign * gpus * status.reservation.memory_bytes


# Shared, and therefore never changed.
_UNUSED = QueueUse()


@dataclass(slots=True)
class QuotaState:
    """The quotas of all queues, updated while this cycle places jobs."""

    by_name: Mapping[str, GPUQueue]
    # Use of each queue's own jobs.
    use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # Queues whose own jobs do not overtake one that has waited for a long time.
    quota_held: set[str] = field(default_factory=set[str])
    # Queues, with the resource, whose shared quota is held for such a job.
    shared_held: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    # Incremented with every change of use, so that cached shares can be renewed.
    version: int = 0
    tree: QueueTree = field(default_factory=lambda: QueueTree({}))
    # Use of each queue with all queues below it.
    _held: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # The same after the jobs in `_leaving` have left and their beneficiaries have started.
    _later: dict[str, QueueUse] | None = None
    _leaving: set[str] = field(default_factory=set[str])
    # Use of jobs that have ended and count until the next cycle: of each queue's own jobs, and with
    # all queues below it.
    _ended_own: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    _ended: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # UIDs of the jobs that have ended.
    _ended_uids: set[str] = field(default_factory=set[str])
    # Children that hold anything, by parent. Thousands of others need not be asked.
    _users: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    # Which queues borrow or give back, until the use changes.
    _answers: dict[tuple[str, ...], bool] = field(default_factory=dict[tuple[str, ...], bool])
    _over: dict[str, bool] = field(default_factory=dict[str, bool])
    _over_rest: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    _borrowers: list[str] | None = None

    def __post_init__(self) -> None:
        if self.tree.by_name is not self.by_name:
            self.tree = QueueTree(self.by_name)
        for name, own in self.use.items():
            for one in self.tree.path(name):
                self._held[one] = _sum_of(self.held(one), own)
                self._note_use(one)

    def _note_use(self, name: str) -> None:
        parent = self.tree.parent(name)
        if parent is None:
            return
        users = self._users.setdefault(parent, set())
        if self.held(name).jobs:
            users.add(name)
        else:
            users.discard(name)

    def queue_of(self, job: GPUJob) -> str:
        """Returns the queue whose quota the job uses.

        Returns "" for a running job if no status records which queue admitted it, and its spec's
        queue does not admit it.
        """
        name = queue_of(job)
        unsaid = job.status.placement is not None and job.status.queue is None
        return "" if unsaid and self.refusal(job) else name

    def priority_of(self, job: GPUJob) -> int:
        """Returns the priority of a running job.

        A priority that was edited after admission is capped to the range of the queue that admitted
        the job.
        """
        return self.capped(job.spec.priority, self.queue_of(job))

    def capped(self, priority: int, name: str) -> int:
        """Returns the nearest priority that the queue allows."""
        queue = self.by_name.get(name)
        given = queue.spec.priority if queue is not None else None
        if given is None:
            return priority
        if given.maximum is not None:
            priority = min(priority, given.maximum)
        return priority if given.minimum is None else max(priority, given.minimum)

    def note_ended(self, jobs: Iterable[GPUJob]) -> None:
        """Notes that these counted jobs have ended. Entitlement does not depend on them."""
        for job in jobs:
            self._ended_uids.add(job.metadata.uid)
            self._count_ended(job, 1)

    def _count_ended(self, job: GPUJob, sign: int) -> None:
        name, use = self.queue_of(job), _use_of(job, job.status, sign)
        self._ended_own[name] = _sum_of(self._ended_own.get(name, _UNUSED), use)
        for one in self.tree.path(name):
            self._ended[one] = _sum_of(self._ended.get(one, _UNUSED), use)

    def held(self, name: str) -> QueueUse:
        """Returns what the jobs of the queue and of all queues below it use."""
        return self._held.get(name, _UNUSED)

    def own(self, name: str) -> QueueUse:
        """Returns what the jobs of the queue itself use."""
        return self.use.get(name, _UNUSED)

    def add(self, job: GPUJob, status: GPUJobStatus, sign: int = 1) -> None:
        """Adds the job's use by this status. A `sign` of -1 subtracts it."""
        name = self.queue_of(job)
        self.use.setdefault(name, QueueUse()).count(job, status, sign)
        for one in self.tree.path(name):
            self._held.setdefault(one, QueueUse()).count(job, status, sign)
            self._note_use(one)
        self._answers.clear()
        self._over.clear()
        self._over_rest.clear()
        self._borrowers = None
        if self._later is not None and job.metadata.uid not in self._leaving:
            self._add_later(name, _use_of(job, status, sign))
        self.version += 1

    def grow(self, job: GPUJob, reservation: Reservation) -> None:
        """Counts the larger reservation that a counted job gets in this cycle."""
        self.add(job, job.status, -1)
        self.add(job, changed(job.status, reservation=reservation))

    @contextmanager
    def simulate_removal(self, jobs: Iterable[GPUJob]) -> Generator[None]:
        """Puts the state, within the context, as if these counted jobs used nothing."""
        gone, version = list(jobs), self.version
        # A removed job must not count as ended too, because it would be subtracted twice.
        ended = [job for job in gone if job.metadata.uid in self._ended_uids]
        for job in gone:
            self.add(job, job.status, -1)
        for job in ended:
            self._count_ended(job, -1)
        try:
            yield
        finally:
            for job in gone:
                self.add(job, job.status)
            for job in ended:
                self._count_ended(job, 1)
            self.version = version

    def claim(self, job: GPUJob, memory_bytes: int, leaving: Iterable[GPUJob]) -> None:
        """Holds the quota for a job that waits until other counted jobs have left.

        No other job in this pass gets what the job will have then.
        """
        if self._later is None:
            self._later = {name: replace(held) for name, held in self._held.items()}
        for other in leaving:
            uid = other.metadata.uid
            if uid not in self._leaving:
                self._leaving.add(uid)
                self._add_later(self.queue_of(other), _use_of(other, other.status, -1))
        self._add_later(job.spec.queue, _with(_UNUSED, job, memory_bytes))
        self.version += 1

    def _add_later(self, name: str, more: QueueUse) -> None:
        assert self._later is not None, "a claim was made"
        for one in self.tree.path(name):
            self._later[one] = _sum_of(self._later.get(one, _UNUSED), more)

    def root(self, name: str) -> str:
        """Returns the root of the queue. Quota is lent and given back among the queues of
        one root.
        """
        return self.tree.path(name)[-1]

    def shares(self, name: str, size: ClusterSize) -> tuple[float, ...]:
        """Returns the dominant shares of GPUs and GPU memory, divided by the weight.

        The first is the share of the root with all queues below it, and so on down to the queue
        with all queues below it. The last is the share of the queue alone.
        """
        path = self.tree.path(name)
        found = [self._share(one, self.held(one), size) for one in reversed(path)]
        return (*found, self._share(name, self.own(name), size))

    def is_admitted(self, name: str, namespace: str, priority: int) -> bool:
        """Returns whether a queue of the name exists and admits such jobs."""
        known = name in self.by_name or name in ("", DEFAULT_QUEUE)
        return (
            known and not self._refuses(name, namespace) and self.capped(priority, name) == priority
        )

    def unknown_queue(self, job: GPUJob) -> str:
        """Returns a message if the job's queue does not exist, or ""."""
        name = job.spec.queue
        if name in self.by_name or name == DEFAULT_QUEUE:
            return ""
        known = ", ".join(sorted({*self.by_name, DEFAULT_QUEUE})[:10])
        return f"spec.queue: GPUQueue {name!r} does not exist; existing queues: {known}"

    def refusal(self, job: GPUJob) -> str:
        """Returns why the job's queue never admits it, with field, value and queue, or ""."""
        refused = self.namespace_refusal(job)
        queue = self.by_name.get(job.spec.queue)
        if refused or queue is None:
            return refused
        bound = _beyond(job.spec.priority, queue)
        return f"spec.priority: {job.spec.priority} is {bound}" if bound else ""

    def namespace_refusal(self, job: GPUJob) -> str:
        """Returns why the job's queue admits no jobs of its namespace, or ""."""
        name, namespace = job.spec.queue, job.metadata.namespace
        if not self._refuses(name, namespace):
            return ""
        return f"spec.queue: {name}: GPUQueue {name} does not admit jobs of namespace {namespace}"

    def _refuses(self, name: str, namespace: str) -> bool:
        queue = self.by_name.get(name)
        allowed = queue.spec.namespaces if queue is not None else None
        return allowed is not None and namespace not in allowed

    def quota_shortfall(self, job: GPUJob, memory_bytes: int) -> str:
        """Returns why this job would exceed the quota of its queue or of a queue above it, or "".

        `memory_bytes` is per GPU.
        """
        held = self.held_for_another(job, memory_bytes)
        if held:
            return f"the quota of queue {held} is held for an earlier job"
        for name in self.tree.path(job.spec.queue):
            problem = self._exceeds(name, self.held(name), job, memory_bytes)
            if problem:
                return problem
        if self._later is None:
            return ""
        for name in self.tree.path(job.spec.queue):
            later = self._later.get(name, _UNUSED)
            if self._exceeds(name, later, job, memory_bytes):
                return f"the quota of queue {name} is held for a job for which others stop"
        return ""

    def memory_limit_bytes(self, name: str) -> int | None:
        """Returns the most GPU memory that jobs of the queue may have together. None: no bound."""
        limits = [self.tree.limit(one).memory_bytes for one in self.tree.path(name)]
        return min([one for one in limits if one is not None], default=None)

    def too_full(self, job: GPUJob, memory_bytes: int) -> set[str]:
        """Returns the job's queue and queues above it that would exceed their quota with
        the job.
        """
        after = self._held if self._later is None else self._later
        return {
            name
            for name in self.tree.path(job.spec.queue)
            if self._exceeds(name, self.held(name), job, memory_bytes)
            or self._exceeds(name, after.get(name, _UNUSED), job, memory_bytes)
        }

    def held_for_another(self, job: GPUJob, memory_bytes: int) -> str:
        """Returns the queue whose quota is held for an earlier job, if this job needs it, or ""."""
        name = job.spec.queue
        if name in self.quota_held:
            return name
        if not self.shared_held:
            return ""
        below = None
        for one in self.tree.path(name):
            for kind in (_GPUS, _MEMORY):
                is_held = (one, kind) in self.shared_held
                if is_held and not self._is_firm(one, below, kind, job, memory_bytes):
                    return one
            below = one
        return ""

    def _is_firm(
        self, name: str, below: str | None, kind: int, job: GPUJob, memory_bytes: int
    ) -> bool:
        """Returns whether the job is within what was promised to child `below` alone."""
        nominal = None if below is None else self.tree.nominal(below)[kind]
        if below is None or nominal is None or self.tree.is_overcommitted(name, kind):
            return False
        return _with(self.held(below), job, memory_bytes)[kind] <= nominal

    def hold_quota(self, job: GPUJob) -> None:
        """Lets no later job of the queue overtake this one."""
        self.quota_held.add(job.spec.queue)

    def hold_shared_quota(self, lacking: Iterable[tuple[str, int]]) -> None:
        """Lets no later job of any queue use these quotas, except what was promised to it alone."""
        self.shared_held.update(lacking)

    def lacking(self, job: GPUJob, memory_bytes: int) -> list[tuple[str, int]]:
        """Returns the quotas that the job would exceed now: the queue and the resource, from the
        job's queue up.
        """
        found: list[tuple[str, int]] = []
        for name in self.tree.path(job.spec.queue):
            limit, after = self.tree.limit(name), _with(self.held(name), job, memory_bytes)
            for kind in (_GPUS, _MEMORY):
                most = limit[kind]
                if most is not None and after[kind] > most:
                    found.append((name, kind))
        return found

    def has_equal_right(self, job: GPUJob, memory_bytes: int, *, borrows: bool) -> bool:
        """Returns whether the job would be within all quotas once those have left that have no more
        right to them than its queue.

        These jobs hold a part of a rest that the job's queue shares, or of nominal quotas that are
        together more than their parent's, or they borrow. Unless `borrows`, the job would have to
        be entitled then.
        """
        name, gpus = job.spec.queue, job.spec.gpus
        return all(
            self._is_within_beside_promises(name, amount, kind, borrows=borrows)
            for kind, amount in ((_GPUS, gpus), (_MEMORY, gpus * memory_bytes))
        )

    def _is_within_beside_promises(
        self, name: str, amount: int, kind: int, *, borrows: bool
    ) -> bool:
        below, tree = None, self.tree
        for one in tree.path(name):
            own = None if below is None else tree.nominal(below)[kind]
            promised = tree.rest(one)[kind] if own is None else own
            if not borrows and promised is not None and amount > promised:
                return False
            # The rest is shared with others, and so is a quota that is promised more than once.
            shares_rest = own is None
            shares_all = own is not None and amount <= own and tree.is_overcommitted(one, kind)
            if not shares_all:
                amount += self._promised_in(one, below, kind)
                amount += 0 if shares_rest else self._promised_of_rest(one, kind)
            most = tree.limit(one)[kind] if borrows else tree.nominal(one)[kind]
            if most is not None and amount > most:
                return False
            below = one
        return True

    def _promised_in(self, name: str, but: str | None, kind: int) -> int:
        """Returns what the other children have that is promised to them alone."""
        return sum(
            min(nominal, self._kept(child, kind))
            for child in self._users.get(name, ())
            if child != but and (nominal := self.tree.nominal(child)[kind]) is not None
        )

    def _promised_of_rest(self, name: str, kind: int) -> int:
        """Returns how much of the queue's rest is held by those to whom it is promised."""
        children = self._users.get(name, ())
        loose = (child for child in children if self.tree.nominal(child)[kind] is None)
        held = self._kept(name, kind, own=True) + sum(self._kept(child, kind) for child in loose)
        rest = self.tree.rest(name)[kind]
        return held if rest is None else min(held, rest)

    def is_kept_out_by_others(self, job: GPUJob, memory_bytes: int) -> bool:
        """Returns whether the job would exceed a quota even without other jobs of its queue.

        Jobs that have ended do not count either.
        """
        name = job.spec.queue
        own = _less_of(self.own(name), self._ended_own.get(name, _UNUSED))
        return any(
            self._exceeds(one, _less_of(self._staying(one), own), job, memory_bytes)
            for one in self.tree.path(name)
        )

    def _staying(self, name: str) -> QueueUse:
        return _less_of(self.held(name), self._ended.get(name, _UNUSED))

    def fits_in_nominal(self, job: GPUJob, memory_bytes: int) -> bool:
        """Returns whether the job is entitled: quota was promised to its queue and the job is
        within it.

        Queues that borrow this quota give it back.
        """
        if not self.tree.is_promised_any(job.spec.queue):
            return False
        return not self.would_borrow(job, memory_bytes)

    def would_borrow(self, job: GPUJob, memory_bytes: int) -> bool:
        """Returns whether the job would use quota that was not promised to its queue or to one
        above it.

        Quota that was promised to others and that they use themselves also counts as borrowed.
        """
        if not self.by_name:
            return False
        gpus = job.spec.gpus
        within = self._is_within(job.spec.queue, gpus, _GPUS)
        return not (within and self._is_within(job.spec.queue, gpus * memory_bytes, _MEMORY))

    def _is_within(self, name: str, amount: int, kind: int) -> bool:
        """Returns whether this amount is within the promises to the queue and to each queue above
        it.

        Queues outside this path count with at most what was promised to them.
        """
        below = None
        for one in self.tree.path(name):
            firm, loose, rest = 0, self._kept(one, kind, own=True), self.tree.rest(one)[kind]
            for child in self._users.get(one, ()):
                nominal = self.tree.nominal(child)[kind]
                if child == below:
                    continue
                if nominal is None:
                    loose += self._kept(child, kind)
                else:
                    firm += min(nominal, self._kept(child, kind))
            if below is None or self.tree.nominal(below)[kind] is None:
                loose += amount
                if rest is not None and loose > rest:
                    return False
                amount = loose + firm
            else:
                amount += firm + (loose if rest is None else min(loose, rest))
            nominal = self.tree.nominal(one)[kind]
            if nominal is not None and amount > nominal:
                return False
            below = one
        return True

    def _kept(self, name: str, kind: int, *, own: bool = False) -> int:
        """Returns what the jobs of the queue hold, except those that have ended.

        Jobs of the queues below it count unless `own`.
        """
        if own:
            return self.own(name)[kind] - self._ended_own.get(name, _UNUSED)[kind]
        return self.held(name)[kind] - self._ended.get(name, _UNUSED)[kind]

    def can_be_reclaimed_for(self, name: str, for_queue: str) -> bool:
        """Returns whether a job of queue `name` may be stopped for an entitled job of `for_queue`.

        The paths from the root to the two queues part at some queue. The path to `name` must borrow
        there. Below that, it must follow a queue that borrows, if any queue there does.
        """
        known = self._answers.get((name, for_queue))
        if known is None:
            known = self._answers[name, for_queue] = self._gives_back(name, for_queue)
        return known

    def _gives_back(self, name: str, for_queue: str) -> bool:
        if not self.borrows_beside(name, for_queue):
            return False
        way = self._way(name, for_queue)
        if not way:
            return True
        for one, below in zip(way, [*way[1:], None], strict=True):
            goes_on = self._rest_is_exceeded(one) if below is None else self._is_over(below)
            if not goes_on and self._anybody_borrows_in(one):
                return False
        return True

    def is_owed(self, name: str) -> bool:
        """Returns whether any queue gives back for an entitled job of this queue."""
        known = self._answers.get((name,))
        if known is None:
            if self._borrowers is None:
                self._borrowers = [
                    one for one, use in self.use.items() if use.jobs and self._may_give_back(one)
                ]
            known = any(self.can_be_reclaimed_for(one, name) for one in self._borrowers)
            self._answers[name,] = known
        return known

    def _may_give_back(self, name: str) -> bool:
        """Returns whether the queue can give back for any other one.

        Few queues borrow, so thousands that wait do not ask each of those that run.
        """
        return self._rest_is_exceeded(name) or any(map(self._is_over, self.tree.path(name)))

    def borrows_beside(self, name: str, for_queue: str) -> bool:
        """Returns whether the path to queue `name` borrows where it parts from the path to
        `for_queue`.

        If so, one of these queues gives back, even if this one does not.
        """
        if name == for_queue:
            return False
        way = self._way(name, for_queue)
        return self._is_over(way[0]) if way else self._rest_is_exceeded(name)

    def _way(self, name: str, for_queue: str) -> list[str]:
        """Returns the queues down to `name` that are not above `for_queue`."""
        above = self.tree.path(for_queue)
        return [one for one in reversed(self.tree.path(name)) if one not in above]

    def _anybody_borrows_in(self, name: str) -> bool:
        """Returns whether a child, or the queue's own jobs, have more than was promised to them."""
        children = any(self._is_over(child) for child in self._users.get(name, ()))
        return children or self._rest_is_exceeded(name)

    def _is_over(self, name: str) -> bool:
        """Returns whether the queue with all queues below it has more than was promised to it."""
        known = self._over.get(name)
        if known is None:
            known = self._over[name] = self._holds_more(name)
        return known

    def _holds_more(self, name: str) -> bool:
        held, nominal = self.held(name), self.tree.nominal(name)
        parent = self.tree.parent(name)
        for kind in (_GPUS, _MEMORY):
            quota = nominal[kind]
            if quota is not None:
                if held[kind] > quota:
                    return True
            elif parent is not None and held[kind] and self._rest_over(parent, kind):
                return True
        return False

    def _rest_is_exceeded(self, name: str) -> bool:
        own = self.own(name)
        return any(own[kind] and self._rest_over(name, kind) for kind in (_GPUS, _MEMORY))

    def _rest_over(self, name: str, kind: int) -> bool:
        """Returns whether more is used than the nominal quotas of the queue's children leave.

        The queue's own jobs and its children without a nominal quota count.
        """
        known = self._over_rest.get((name, kind))
        if known is None:
            known = self._over_rest[name, kind] = self._holds_more_than_rest(name, kind)
        return known

    def _holds_more_than_rest(self, name: str, kind: int) -> bool:
        rest = self.tree.rest(name)[kind]
        if rest is None:
            return False
        children = self._users.get(name, ())
        loose = (child for child in children if self.tree.nominal(child)[kind] is None)
        return self.own(name)[kind] + sum(self.held(child)[kind] for child in loose) > rest

    def _exceeds(self, name: str, use: QueueUse, job: GPUJob, memory_bytes: int) -> str:
        limit = self.tree.limit(name)
        after = _with(use, job, memory_bytes)
        if limit.gpus is not None and after.gpus > limit.gpus:
            gpus = after.gpus - use.gpus
            figures = f"queue {name} uses {use.gpus} of {limit.gpus} GPUs, needs {gpus} more"
            problem = self.tree.problems.get(name)
            if problem is not None:
                return f"{figures}; {problem.message}"
            if gpus > limit.gpus:
                return f"queue {name} may use {limit.gpus} GPUs, the job needs {gpus}: {_NEVER}"
            return figures
        if limit.memory_bytes is not None and after.memory_bytes > limit.memory_bytes:
            allowed = format_memory(limit.memory_bytes)
            needed_bytes = after.memory_bytes - use.memory_bytes
            if needed_bytes > limit.memory_bytes:
                needed = format_memory(needed_bytes)
                may_use = f"queue {name} may use {allowed} of GPU memory"
                return f"{may_use}, the job needs {needed}: {_NEVER}"
            wanted = format_memory(after.memory_bytes)
            return f"queue {name} would use {wanted} of {allowed} GPU memory"
        return ""

    def _share(self, name: str, use: QueueUse, size: ClusterSize) -> float:
        queue = self.by_name.get(name)
        weight = queue.spec.weight if queue is not None else 1
        shares = (use.gpus / max(size.gpus, 1), use.memory_bytes / max(size.memory_bytes, 1))
        return max(shares) / weight


def _beyond(priority: int, queue: GPUQueue) -> str:
    """Returns the bound of the queue that the priority exceeds, or ""."""
    given, name = queue.spec.priority, queue.metadata.name
    if given is None:
        return ""
    if given.maximum is not None and priority > given.maximum:
        return f"above the maximum of GPUQueue {name}, {given.maximum}"
    if given.minimum is not None and priority < given.minimum:
        return f"below the minimum of GPUQueue {name}, {given.minimum}"
    return ""


def _with(use: QueueUse, job: GPUJob, memory_bytes: int) -> QueueUse:
    """Returns the use with one more job of `memory_bytes` per GPU."""
    gpus = job.spec.gpus
    return QueueUse(use.jobs + 1, use.gpus + gpus, use.memory_bytes + gpus * memory_bytes)


def _sum_of(one: QueueUse, other: QueueUse) -> QueueUse:
    return QueueUse(
        one.jobs + other.jobs, one.gpus + other.gpus, one.memory_bytes + other.memory_bytes
    )


def _less_of(one: QueueUse, other: QueueUse) -> QueueUse:
    return QueueUse(
        one.jobs - other.jobs, one.gpus - other.gpus, one.memory_bytes - other.memory_bytes
    )


def _use_of(job: GPUJob, status: GPUJobStatus, sign: int) -> QueueUse:
    found = QueueUse()
    found.count(job, status, sign)
    return found


def queue_statuses(
    queues: tuple[GPUQueue, ...], state: QuotaState, waiting: Iterable[Pending], now: datetime
) -> list[WriteQueueStatus]:
    """Returns the statuses of queues that changed: what their jobs hold, how many wait, and whether
    their parents count.
    """
    items: list[WriteQueueStatus] = []
    if not queues:
        return items
    counts = Counter(pending.job.spec.queue for pending in waiting)
    for queue in sorted(queues, key=lambda q: q.metadata.name):
        name = queue.metadata.name
        held = state.use.get(name, QueueUse())
        status = GPUQueueStatus(
            observed_generation=queue.metadata.generation,
            pending_jobs=counts.get(name, 0),
            running_jobs=held.jobs,
            reserved_gpus=held.gpus,
            reserved_memory_bytes=held.memory_bytes,
            conditions=_conditions(queue, state, now),
        )
        if status != queue.status:
            items.append(WriteQueueStatus(queue, status))
    return items


def _conditions(queue: GPUQueue, state: QuotaState, now: datetime) -> Conditions:
    """Returns the queue's conditions. `Accepted` is added the first time that it is false."""
    before, problem = find(queue.status, ACCEPTED), state.tree.problems.get(queue.metadata.name)
    if before is None and problem is None:
        return queue.status.conditions
    valid, reason, message = ConditionStatus.TRUE, "Valid", "the parent counts"
    if problem is not None:
        valid, (reason, message) = ConditionStatus.FALSE, problem
    turned = before is None or before.status is not valid
    after = Condition(
        type=ACCEPTED,
        status=valid,
        reason=reason,
        message=message[:MESSAGE_CHARACTERS_MAX],
        last_transition_time=now if turned or before is None else before.last_transition_time,
        observed_generation=queue.metadata.generation,
    )
    others = [one for one in queue.status.conditions if one.type != ACCEPTED]
    return tuple(sorted([*others, after], key=lambda one: one.type))
