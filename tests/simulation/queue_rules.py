"""Checks what GPUQueues promise of every attempt that gets GPUs: who is admitted, and the quotas.

That jobs share a GPU only where their queues say so is the `Recorder`'s, which looks at each GPU.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue, Quota
from gpujob_api.manifest import gpuqueue_from_manifest
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.stop_reasons import RECLAIMED, rule_of
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import T0
from tests.simulation.api_server import ApiServer, Revision
from tests.simulation.room import CLOCK_SLACK_SECONDS

# The UID of a job, and one of its attempts.
Attempt = tuple[str, int]


class Findings(Protocol):
    def fail(self, invariant: str, message: str) -> None:
        """Of what is so now."""
        ...

    def job_now(self, uid: str) -> GPUJob | None:
        """The job as it is committed, in its status or on its pod."""
        ...

    def is_leaving(self, uid: str) -> bool:
        """Whether only a pod that is being deleted says that the job is placed."""
        ...

    def may_not_know(self, at: float) -> bool:
        """Whether an operator then may still decide on what a restore has taken away."""
        ...


class QueueRules:
    """Feed it every revision, each after `findings`, which is told what broke a promise. Queues do
    not change while it looks.
    """

    def __init__(self, api: ApiServer, findings: Findings, preemptions_max: int) -> None:
        self._api = api
        self._jobs = findings
        self._fail = findings.fail
        self._preemptions_max = preemptions_max
        # The attempts that hold GPUs: since when they have reserved how many bytes.
        self._holding: dict[Attempt, list[tuple[float, int]]] = {}
        api.recorders.append(self.observe)
        api.restored.append(self._restored)

    def observe(self, revision: Revision) -> None:
        if revision.kind not in (Kind.JOB, Kind.POD):
            return
        holders = self._holders()
        new = holders.keys() - self._holding.keys()
        self._note(holders)
        if self._jobs.may_not_know(revision.at):
            return
        queues = self._queues() if new else {}
        for attempt in sorted(new):
            self._check(holders[attempt], holders.values(), queues)
        for job in holders.values():
            self._check_stop(job)

    def _check_stop(self, job: GPUJob) -> None:
        """I11: what is borrowed is given back however often."""
        stop, count = job.status.stop, job.status.counters.preemptions
        for_others = rule_of(stop).for_others and stop is not None and stop.reason != RECLAIMED
        if for_others and count >= self._preemptions_max:
            self._fail("I11", f"{job.metadata.key} is preempted after {count} times")

    def _restored(self) -> None:
        self._note(self._holders())

    def _note(self, holders: Mapping[Attempt, GPUJob]) -> None:
        before, self._holding = self._holding, {}
        for attempt, job in holders.items():
            known = self._holding[attempt] = before.get(attempt, [])
            if not known or known[-1][1] != _memory_bytes(job):
                known.append((self._api.now, _memory_bytes(job)))

    def _least_bytes(self, job: GPUJob, since: float) -> int:
        """The least that the job has reserved since then, or since it came."""
        known = self._holding[job.metadata.uid, job.status.attempt]
        first = max((at for at, _ in known if at <= since), default=known[0][0])
        return min(reserved for at, reserved in known if at >= first)

    def _holders(self) -> dict[Attempt, GPUJob]:
        all_uids = [manifest["metadata"]["uid"] for manifest in self._api.list(Kind.JOB)]
        uids = [uid for uid in all_uids if not self._jobs.is_leaving(uid)]
        jobs = [job for uid in uids if (job := self._jobs.job_now(uid)) is not None]
        return {(job.metadata.uid, job.status.attempt): job for job in jobs if holds_gpus(job)}

    def _queues(self) -> Mapping[str, GPUQueue]:
        queues = map(gpuqueue_from_manifest, self._api.list(Kind.QUEUE))
        return {queue.metadata.name: queue for queue in queues}

    def _check(
        self, job: GPUJob, holders: Iterable[GPUJob], queues: Mapping[str, GPUQueue]
    ) -> None:
        """I11, I15: the job's queue admits it, and with it neither the queue nor its parent is
        beyond the quota."""
        key, queue = job.metadata.key, queues[job.spec.queue]
        if not admits(queue, job.metadata.namespace, job.spec.priority):
            self._fail("I15", f"{key} has GPUs, queue {job.spec.queue} does not admit it")
        for name in {job.spec.queue, queue.spec.parent or job.spec.queue}:
            members = [
                one
                for one in holders
                if name in (one.spec.queue, queues[one.spec.queue].spec.parent)
            ]
            self._check_quota(job, queues[name], members)

    def _check_quota(self, job: GPUJob, queue: GPUQueue, members: list[GPUJob]) -> None:
        """A queue may grow beyond its quota by what is measured. Of growth that was written after
        the job's placement was decided, the decision knew nothing: its own write may come late."""
        key, name = job.metadata.key, queue.metadata.name
        gpus, limit = sum(map(_gpus, members)), gpu_limit(queue)
        if limit is not None and gpus > limit:
            self._fail("I11", f"queue {name} has {gpus} of {limit} GPUs with {key}")
        decided_at = job.status.attempt_started_at or T0
        since = (decided_at - T0).total_seconds() - CLOCK_SLACK_SECONDS
        memory_bytes = sum(self._least_bytes(one, since) for one in members)
        limit_bytes = memory_limit(queue)
        if limit_bytes is not None and memory_bytes > limit_bytes:
            self._fail("I11", f"queue {name} has {memory_bytes} of {limit_bytes} bytes with {key}")


def admits(queue: GPUQueue, namespace: str, priority: int) -> bool:
    """Whether the queue takes jobs of this namespace and this priority."""
    allowed, bounds = queue.spec.namespaces, queue.spec.priority
    if allowed is not None and namespace not in allowed:
        return False
    if bounds is None:
        return True
    too_low = bounds.minimum is not None and priority < bounds.minimum
    return not too_low and (bounds.maximum is None or priority <= bounds.maximum)


def gpu_limit(queue: GPUQueue) -> int | None:
    """How many GPUs the jobs of the queue, and of its children, may have at a time; None: any."""
    return _limit(queue, queue.spec.nominal.gpus, queue.spec.borrowing_limit.gpus)


def memory_limit(queue: GPUQueue) -> int | None:
    """The same of GPU memory, in bytes."""
    return _limit(queue, _bytes(queue.spec.nominal), _bytes(queue.spec.borrowing_limit))


def _limit(queue: GPUQueue, nominal: int | None, extra: int | None) -> int | None:
    """With a parent all may be borrowed that no limit forbids; without one nothing."""
    if nominal is None or (extra is None and queue.spec.parent is not None):
        return None
    return nominal + (extra or 0)


def _bytes(quota: Quota) -> int | None:
    return None if quota.gpu_memory is None else quota.gpu_memory.bytes


def _gpus(job: GPUJob) -> int:
    placement = job.status.placement
    return sum(len(one.gpus) for one in placement.workers) if placement is not None else 0


def _memory_bytes(job: GPUJob) -> int:
    held = job.status.reservation
    return _gpus(job) * held.memory_bytes if held is not None else 0
