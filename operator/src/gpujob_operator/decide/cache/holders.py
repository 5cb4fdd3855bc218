"""Jobs that hold GPUs, counted as they come and go."""

from collections import Counter
from dataclasses import dataclass, field, replace

from gpujob_api.gpujob import PRIORITY_MAX, GPUJob
from gpujob_operator.decide.measurement.slowdown import is_slowed
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.queue.quota import QueueUse


@dataclass(slots=True)
class Holders:
    """`add` a job that holds GPUs, and `remove` the same object again."""

    # By UID, in the order in which they were added.
    jobs: dict[str, None] = field(default_factory=dict[str, None])
    # Those that run and are slowed by co-tenants.
    slowed: set[str] = field(default_factory=set[str])
    # Those whose attempt ends for another job's sake.
    _being_preempted: set[str] = field(default_factory=set[str])
    _priorities: Counter[int] = field(default_factory=Counter[int])
    _use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])

    def add(self, job: GPUJob) -> None:
        uid = job.metadata.uid
        self.jobs[uid] = None
        self._use.setdefault(job.spec.queue, QueueUse()).count(job, job.status)
        self._priorities[job.spec.priority] += 1
        if rule_of(job.status.stop).for_others:
            self._being_preempted.add(uid)
        if is_slowed(job.status):
            self.slowed.add(uid)

    def remove(self, job: GPUJob) -> None:
        self.jobs.pop(job.metadata.uid)
        self._use[job.spec.queue].count(job, job.status, -1)
        self._priorities[job.spec.priority] -= 1
        self._being_preempted.discard(job.metadata.uid)
        self.slowed.discard(job.metadata.uid)

    def use(self) -> dict[str, QueueUse]:
        """What each queue's jobs hold, free to be changed."""
        return {name: replace(held) for name, held in self._use.items() if held.jobs}

    @property
    def lowest_priority(self) -> int:
        """Above every priority when there are none."""
        held = (priority for priority, count in self._priorities.items() if count)
        return min(held, default=PRIORITY_MAX)

    @property
    def preemption_in_flight(self) -> bool:
        return bool(self._being_preempted)
