"""Cycles of `plan` on a large cluster that changes a little from one to the next.

What an API server would do to the objects is done here in a few lines: statuses are written,
created pods run. Between cycles running jobs end, nodes are read again, and as many jobs arrive as
have started.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from bench.scale_nouns import NOW
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan, SaveProfile, WriteStatus
from gpujob_operator.decide.model.snapshot import PodPhase, PodView, Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.garbage import spare_from_collection

# So short that readings stay fresh and nobody waits for over a minute before `wait`.
CYCLE_SECONDS = 0.5
# Before anything is measured; of these without changes.
SETTLE_CYCLES = 30
QUIET_CYCLES = 6


@dataclass(slots=True)
class Cycles:
    """A snapshot that lives on, and the memory of the operator that plans for it."""

    snapshot: Snapshot
    pod_of: Callable[[GPUJob], PodView]
    # A new job of this number.
    job_of: Callable[[int], GPUJob]
    # How many jobs wait: for each that starts, another arrives.
    pending: int
    now: datetime = NOW
    memory: SchedulerCache = field(default_factory=SchedulerCache)
    random: Random = field(default_factory=lambda: Random(1))
    # The row of the node that is read next.
    read: int = 0
    # Jobs that came later.
    arrived: int = 0

    def step(self) -> tuple[Plan, float, float]:
        """One cycle: the plan, its milliseconds by the clock and of the processor."""
        start, processor = time.perf_counter(), time.process_time()
        decided = plan(self.snapshot, self.now, self.memory)
        taken = 1000 * (time.perf_counter() - start), 1000 * (time.process_time() - processor)
        self._apply(decided)
        return decided, *taken

    def settle(self, changes: int) -> None:
        """The first cycles: every object is new, every status is written, and all workloads learn
        at once how fast they are alone and beside others. A workload does so once."""
        for number in range(SETTLE_CYCLES):
            if number >= QUIET_CYCLES:
                self.change(changes)
            else:
                self.now += timedelta(seconds=CYCLE_SECONDS)
            self.step()
        # As the operator does once its first cycle is done.
        spare_from_collection()

    def wait(self, seconds: float, changes: int) -> None:
        """Nothing happens for so long, but that all nodes are read; then a few cycles pass."""
        self.now += timedelta(seconds=seconds)
        self._read(range(len(self.snapshot.gpu_nodes)))
        self.step()
        for _ in range(QUIET_CYCLES):
            self.change(changes)
            self.step()
        spare_from_collection()

    def change(self, count: int) -> None:
        """Half of the changes are jobs that end, half nodes that are read again."""
        self.now += timedelta(seconds=CYCLE_SECONDS)
        running = [job for job in self.snapshot.jobs if job.status.phase is JobPhase.RUNNING]
        ended = {
            job.metadata.uid for job in self.random.sample(running, min(count // 2, len(running)))
        }
        pods = tuple(_done(pod) if pod.job_uid in ended else pod for pod in self.snapshot.pods)
        self.snapshot = replace(self.snapshot, pods=pods)
        # In turn, so that no reading becomes old.
        nodes = len(self.snapshot.gpu_nodes)
        first, self.read = self.read, (self.read + count - count // 2) % nodes
        self._read((first + number) % nodes for number in range(min(count - count // 2, nodes)))
        self._arrive()

    def _arrive(self) -> None:
        waiting = sum(job.status.phase is JobPhase.PENDING for job in self.snapshot.jobs)
        numbers = range(self.arrived, self.arrived + max(self.pending - waiting, 0))
        self.arrived = numbers.stop
        new = [self.job_of(number) for number in numbers]
        dated = (replace(j, metadata=replace(j.metadata, creation_timestamp=self.now)) for j in new)
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, *dated))

    def _read(self, rows: Iterable[int]) -> None:
        nodes = list(self.snapshot.gpu_nodes)
        for row in rows:
            status = replace(nodes[row].status, observed_at=self.now)
            nodes[row] = replace(nodes[row], status=status)
        self.snapshot = replace(self.snapshot, gpu_nodes=tuple(nodes))

    def _apply(self, decided: Plan) -> None:
        jobs = {job.metadata.uid: job for job in self.snapshot.jobs}
        pods = {pod.uid: pod for pod in self.snapshot.pods}
        profiles: dict[str, GPUProfile] = {p.metadata.name: p for p in self.snapshot.profiles}
        for item in decided.items:
            if isinstance(item, WriteStatus):
                uid = item.job.metadata.uid
                jobs[uid] = replace(jobs[uid], status=item.status)
            elif isinstance(item, CreatePod):
                pod = self.pod_of(jobs[item.job.metadata.uid])
                pods[pod.uid] = pod
            elif isinstance(item, DeletePod):
                pods.pop(item.pod.uid, None)
            elif isinstance(item, SaveProfile):
                profiles[item.profile.metadata.name] = item.profile
        self.snapshot = replace(
            self.snapshot,
            jobs=tuple(jobs.values()),
            pods=tuple(pods.values()),
            profiles=tuple(profiles.values()),
        )


def _done(pod: PodView) -> PodView:
    return replace(pod, phase=PodPhase.SUCCEEDED, exit_code=0)
