"""Quotas, borrowing and use of queues and cohorts.

A queue may always have its nominal quota. Beyond it, the queue borrows unused quota up to its
borrowing limit, and the quota can be reclaimed: jobs within their queue's nominal quota come first,
and jobs of a queue that borrows are preempted for them (see `preemption`). A parent's quota holds
for the parent and its children together.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, Reservation
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue, Quota
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity.cluster import ClusterSize


@dataclass(slots=True)
class QueueUse:
    """What the running jobs of a queue use."""

    jobs: int = 0
    gpus: int = 0
    memory_bytes: int = 0

    def count(self, job: GPUJob, status: GPUJobStatus, sign: int = 1) -> None:
        """Adds the job's use by this status; `sign` -1 subtracts it."""
        if status.placement is None or status.reservation is None:
            return
        gpus = sum(len(worker.gpus) for worker in status.placement.workers)
        self.jobs += sign
        self.gpus += sign * gpus
        self.memory_bytes += sign * gpus * status.reservation.memory_bytes


@dataclass(frozen=True, slots=True)
class _Limit:
    """An upper bound on the use of a queue or a cohort; None: no bound."""

    gpus: int | None
    memory_bytes: int | None

    def exceeded(self, use: QueueUse) -> bool:
        over_gpus = self.gpus is not None and use.gpus > self.gpus
        over_memory = self.memory_bytes is not None and use.memory_bytes > self.memory_bytes
        return over_gpus or over_memory

    def within(self, use: QueueUse) -> QueueUse:
        """The part of the use that is within the bound."""
        gpus = use.gpus if self.gpus is None else min(use.gpus, self.gpus)
        memory = use.memory_bytes
        memory = memory if self.memory_bytes is None else min(memory, self.memory_bytes)
        return QueueUse(use.jobs, gpus, memory)


@dataclass(slots=True)
class QuotaState:
    """The quotas of all queues, updated while this cycle places jobs."""

    by_name: Mapping[str, GPUQueue]
    use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # Use of a cohort, by the parent's name.
    cohort_use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # Queues whose quota is held for a job that has waited for long.
    quota_held: set[str] = field(default_factory=set[str])
    # Incremented with every change of use, so that cached shares can be renewed.
    version: int = 0

    @classmethod
    def of(cls, by_name: Mapping[str, GPUQueue], use: dict[str, QueueUse]) -> "QuotaState":
        """The quota state of queues with the use of each."""
        found = cls(by_name, use)
        for name, held in use.items():
            cohort = found.cohort(name)
            found.cohort_use[cohort] = _sum_of(found.cohort_use.get(cohort, QueueUse()), held)
        return found

    def add(self, job: GPUJob, status: GPUJobStatus, sign: int = 1) -> None:
        """Adds the job's use by this status; `sign` -1 subtracts it."""
        name = job.spec.queue
        self.use.setdefault(name, QueueUse()).count(job, status, sign)
        self.cohort_use.setdefault(self.cohort(name), QueueUse()).count(job, status, sign)
        self.version += 1

    def grow(self, job: GPUJob, reservation: Reservation) -> None:
        """Counts the larger reservation that a job, which is counted, gets in this cycle."""
        self.add(job, job.status, -1)
        self.add(job, changed(job.status, reservation=reservation))

    @contextmanager
    def simulate_removal(self, jobs: Iterable[GPUJob]) -> Generator[None]:
        """The state as if these jobs, which are counted, used nothing."""
        gone, version = list(jobs), self.version
        for job in gone:
            self.add(job, job.status, -1)
        try:
            yield
        finally:
            for job in gone:
                self.add(job, job.status)
            self.version = version

    def cohort(self, name: str) -> str:
        """The queue's parent, or the queue itself if there is no such parent."""
        queue = self.by_name.get(name)
        parent = queue.spec.parent if queue is not None else None
        return parent if parent is not None and parent in self.by_name else name

    def shares(self, name: str, arrays: ClusterSize) -> tuple[float, float]:
        """Dominant share of GPUs and GPU memory divided by the weight: of the cohort, and of the
        queue alone.
        """
        cohort = self.cohort(name)
        group = self._share(cohort, self.cohort_use.get(cohort, QueueUse()), arrays)
        return group, self._share(name, self.use.get(name, QueueUse()), arrays)

    def unknown_queue(self, job: GPUJob) -> str:
        """The message that the job's queue does not exist, or ""."""
        name = job.spec.queue
        if name in self.by_name or name == DEFAULT_QUEUE:
            return ""
        known = ", ".join(sorted({*self.by_name, DEFAULT_QUEUE})[:10])
        return f"spec.queue: GPUQueue {name!r} does not exist; existing queues: {known}"

    def refusal(self, job: GPUJob) -> str:
        """Why the job's queue never admits it, with field, value and queue; or ""."""
        name = job.spec.queue
        queue = self.by_name.get(name)
        if queue is None:
            return ""
        allowed = queue.spec.namespaces
        if allowed is not None and job.metadata.namespace not in allowed:
            who = f"namespace {job.metadata.namespace}"
            return f"spec.queue: {name}: GPUQueue {name} does not admit jobs of {who}"
        bound = _beyond(job.spec.priority, queue)
        return f"spec.priority: {job.spec.priority} is {bound}" if bound else ""

    def quota_shortfall(self, job: GPUJob, memory_bytes: int) -> str:
        """Why this job would exceed its queue's or its cohort's quota, or "".

        `memory_bytes` is per GPU.
        """
        if job.spec.queue in self.quota_held:
            return f"the quota of queue {job.spec.queue} is held for an earlier job"
        return self._shortfall(job, memory_bytes, self.use, self.cohort_use)

    def hold_quota(self, job: GPUJob, memory_bytes: int) -> None:
        """Lets no later job of the queue overtake this one, if the job can ever be within the
        quota.
        """
        if not self._shortfall(job, memory_bytes, {}, {}):
            self.quota_held.add(job.spec.queue)

    def fits_in_nominal(self, job: GPUJob, memory_bytes: int) -> bool:
        """True if the job's queue has a nominal quota and stays within it with the job, and so does
        its cohort once its borrowing queues give back.
        """
        queue = self.by_name.get(job.spec.queue)
        if queue is None or queue.spec.nominal == Quota():
            return False
        return not self.would_borrow(job, memory_bytes)

    def would_borrow(self, job: GPUJob, memory_bytes: int) -> bool:
        """True if with the job its queue exceeds its nominal quota, or its parent does by the use
        of all children within their own quotas.
        """
        name = job.spec.queue
        if not self.by_name:
            return False
        own = _with(self.use.get(name, QueueUse()), job, memory_bytes)
        if self._nominal(name).exceeded(own):
            return True
        cohort = self.cohort(name)
        if cohort == name and not self._children(cohort):
            return False
        firm = QueueUse()
        for member in (cohort, *self._children(cohort)):
            use = own if member == name else self.use.get(member, QueueUse())
            firm = _sum_of(firm, self._nominal(member).within(use))
        return self._nominal(cohort).exceeded(firm)

    def can_be_reclaimed_for(self, name: str, for_queue: str) -> bool:
        """True while queue `name` uses quota that a job of `for_queue` within its quota can
        reclaim: both have one parent, or the parent itself exceeds its quota.
        """
        if name == for_queue:
            return False
        cohort = self.cohort(name)
        if self._nominal(cohort).exceeded(self.cohort_use.get(cohort, QueueUse())):
            return True
        siblings = cohort == self.cohort(for_queue)
        return siblings and self._nominal(name).exceeded(self.use.get(name, QueueUse()))

    def _shortfall(
        self,
        job: GPUJob,
        memory_bytes: int,
        use: Mapping[str, QueueUse],
        cohort_use: Mapping[str, QueueUse],
    ) -> str:
        name = job.spec.queue
        problem = self._exceeds(name, use.get(name, QueueUse()), job, memory_bytes)
        if problem:
            return problem
        # Of a queue that is itself a parent, its children count as well.
        cohort = self.cohort(name)
        return self._exceeds(cohort, cohort_use.get(cohort, QueueUse()), job, memory_bytes)

    def _exceeds(self, name: str, use: QueueUse, job: GPUJob, memory_bytes: int) -> str:
        limit = self._limit(name)
        after = _with(use, job, memory_bytes)
        if limit.gpus is not None and after.gpus > limit.gpus:
            gpus = after.gpus - use.gpus
            return f"queue {name} uses {use.gpus} of {limit.gpus} GPUs, needs {gpus} more"
        if limit.memory_bytes is not None and after.memory_bytes > limit.memory_bytes:
            wanted, allowed = format_memory(after.memory_bytes), format_memory(limit.memory_bytes)
            return f"queue {name} would use {wanted} of {allowed} GPU memory"
        return ""

    def _children(self, cohort: str) -> list[str]:
        return [name for name in self.by_name if name != cohort and self.cohort(name) == cohort]

    def _nominal(self, name: str) -> _Limit:
        queue = self.by_name.get(name)
        if queue is None:
            return _Limit(None, None)
        memory = queue.spec.nominal.gpu_memory
        return _Limit(queue.spec.nominal.gpus, memory.bytes if memory is not None else None)

    def _limit(self, name: str) -> _Limit:
        """The nominal quota plus what may be borrowed. Without a borrowing limit: with a parent,
        all that the parent has; without one, nothing.
        """
        nominal = self._nominal(name)
        queue = self.by_name.get(name)
        if queue is None:
            return nominal
        extra = queue.spec.borrowing_limit
        more_memory = extra.gpu_memory.bytes if extra.gpu_memory is not None else None
        has_parent = self.cohort(name) != name
        return _Limit(
            _sum(nominal.gpus, extra.gpus, unlimited=has_parent),
            _sum(nominal.memory_bytes, more_memory, unlimited=has_parent),
        )

    def _share(self, name: str, use: QueueUse, arrays: ClusterSize) -> float:
        queue = self.by_name.get(name)
        weight = queue.spec.weight if queue is not None else 1
        shares = (use.gpus / max(arrays.gpus, 1), use.memory_bytes / max(arrays.memory_bytes, 1))
        return max(shares) / weight


def _beyond(priority: int, queue: GPUQueue) -> str:
    """The bound of the queue that the priority is beyond, or ""."""
    given, name = queue.spec.priority, queue.metadata.name
    if given is None:
        return ""
    if given.maximum is not None and priority > given.maximum:
        return f"above the maximum of GPUQueue {name}, {given.maximum}"
    if given.minimum is not None and priority < given.minimum:
        return f"below the minimum of GPUQueue {name}, {given.minimum}"
    return ""


def _sum(nominal: int | None, extra: int | None, *, unlimited: bool) -> int | None:
    if nominal is None or (extra is None and unlimited):
        return None
    return nominal + (extra or 0)


def _with(use: QueueUse, job: GPUJob, memory_bytes: int) -> QueueUse:
    """The use with one more job of `memory_bytes` for each GPU."""
    gpus = job.spec.gpus
    return QueueUse(use.jobs + 1, use.gpus + gpus, use.memory_bytes + gpus * memory_bytes)


def _sum_of(one: QueueUse, other: QueueUse) -> QueueUse:
    return QueueUse(
        one.jobs + other.jobs, one.gpus + other.gpus, one.memory_bytes + other.memory_bytes
    )
