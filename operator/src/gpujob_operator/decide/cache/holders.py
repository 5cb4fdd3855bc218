"""Jobs that hold GPUs, counted as they come and go."""

from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.cache.groups import Groups
from gpujob_operator.decide.measurement.slowdown import is_slowed
from gpujob_operator.decide.model.conditions import EDIT_REJECTED, find
from gpujob_operator.decide.model.held_gpus import Place, queue_of
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.queue.quota import QueueUse


@dataclass(slots=True)
class Holders:
    """Jobs that hold GPUs. `add` a job, and later `remove` the same object."""

    # By UID, in the order in which they were added.
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    # Running jobs that are slowed by co-tenants.
    slowed: set[str] = field(default_factory=set[str])
    # By the node that a placement names, and by node and GPU.
    _on_node: Groups[str] = field(default_factory=lambda: Groups[str]())
    _on_gpu: Groups[Place] = field(default_factory=lambda: Groups[Place]())
    # Jobs whose attempt is being stopped for another job.
    _being_preempted: set[str] = field(default_factory=set[str])
    # By queue, namespace and priority.
    _admitted: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    _use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    # Jobs whose status does not record which queue admitted them.
    unsaid: set[str] = field(default_factory=set[str])
    _edited: set[str] = field(default_factory=set[str])

    def add(self, job: GPUJob) -> None:
        uid = job.metadata.uid
        self.jobs[uid] = job
        self._use.setdefault(queue_of(job), QueueUse()).count(job, job.status)
        self._admitted[_admitted_as(job)] += 1
        if job.status.queue is None:
            self.unsaid.add(uid)
        if queue_of(job) != job.spec.queue or find(job.status, EDIT_REJECTED) is not None:
            self._edited.add(uid)
        if rule_of(job.status.stop).for_others:
            self._being_preempted.add(uid)
        if is_slowed(job.status):
            self.slowed.add(uid)
        for name in _nodes_of(job):
            self._on_node.add(name, uid)
        for gpu in _gpus_of(job):
            self._on_gpu.add(gpu, uid)

    def remove(self, job: GPUJob) -> None:
        uid = job.metadata.uid
        del self.jobs[uid]
        self._use[queue_of(job)].count(job, job.status, -1)
        self._admitted[_admitted_as(job)] -= 1
        self.unsaid.discard(uid)
        self._edited.discard(uid)
        self._being_preempted.discard(uid)
        self.slowed.discard(uid)
        for name in _nodes_of(job):
            self._on_node.discard(name, uid)
        for gpu in _gpus_of(job):
            self._on_gpu.discard(gpu, uid)

    def edited(self, is_admitted: Callable[[str, str, int], bool]) -> list[str]:
        """Returns UIDs of jobs that, or whose queue, were edited since they were admitted.

        Jobs whose condition still reports an edit are included. `is_admitted` returns whether a
        queue admits jobs of a namespace with a priority.
        """
        found = self._edited | self.unsaid
        refused = {
            kind for kind, count in self._admitted.items() if count and not is_admitted(*kind)
        }
        if refused:
            found |= {uid for uid, job in self.jobs.items() if _admitted_as(job) in refused}
        return sorted(found)

    def on_node(self, name: str) -> Set[str]:
        return self._on_node.of(name)

    def on_gpus(self, node: str, gpus: Iterable[str]) -> set[str]:
        """Returns the jobs that have any of these GPUs of the node."""
        return set[str]().union(*(self._on_gpu.of((node, gpu)) for gpu in gpus))

    def use(self) -> dict[str, QueueUse]:
        """Returns what each queue's jobs hold. The caller may change the result."""
        return {name: replace(held) for name, held in self._use.items() if held.jobs}

    @property
    def lowest_priorities(self) -> dict[str, int]:
        """The lowest priority of each queue's jobs."""
        self._admitted = +self._admitted
        found: dict[str, int] = {}
        for queue, _, priority in self._admitted:
            found[queue] = min(priority, found.get(queue, priority))
        return found

    @property
    def preemption_in_flight(self) -> bool:
        return bool(self._being_preempted)


def _admitted_as(job: GPUJob) -> tuple[str, str, int]:
    return queue_of(job), job.metadata.namespace, job.spec.priority


def _nodes_of(job: GPUJob) -> set[str]:
    placement = job.status.placement
    return {worker.node for worker in placement.workers} if placement is not None else set()


def _gpus_of(job: GPUJob) -> set[Place]:
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    return {(worker.node, gpu) for worker in workers for gpu in worker.gpus}
