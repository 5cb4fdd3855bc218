"""The product's order, estimates and gang placement on the published simulation.

Every 60 s all active jobs are put in the product's order and take GPUs while there are enough; a
running job that comes too late in the order is interrupted (30 s of no progress when it comes back,
like any change of GPUs). Numbers of GPUs and batch sizes stay as submitted. How much is left is
estimated: from the job's own measured pace, before that from finished runs of the same workload.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.pollux.cluster import GPUS_PER_NODE, NODES, RESTART_SECONDS, GangJob
from gpujob_operator.decide.measurement.runtime import Run, RunHistory, remaining_seconds
from gpujob_operator.decide.model.configuration import OrderPolicy
from gpujob_operator.decide.packing.gang import place_gang
from gpujob_operator.decide.queue.order import OrderEntry, OrderKey, OrderRules, order_key


@dataclass
class GangScheduler:
    """Keeps what it has measured between allocations. `estimates` off: lengths stay unknown."""

    estimates: bool = True
    rules: OrderRules = field(default_factory=lambda: OrderRules(OrderPolicy.SHORTEST))
    history: RunHistory = field(default_factory=RunHistory)
    _active: dict[str, GangJob] = field(default_factory=dict[str, GangJob])
    _pace: dict[str, float] = field(default_factory=dict[str, float])

    def allocate(self, jobs: Sequence[GangJob], now: int) -> Mapping[str, tuple[int, ...]]:
        """Nodes by job name, one node index a GPU."""
        self._measure(jobs, now)
        chosen: list[GangJob] = []
        left = NODES * GPUS_PER_NODE
        for job in sorted(jobs, key=lambda job: self._key(job, now)):
            if job.gpus <= left:
                left -= job.gpus
                chosen.append(job)
        return _place(chosen)

    def _measure(self, jobs: Sequence[GangJob], now: int) -> None:
        """Paces of running jobs, lengths of finished ones."""
        active = {job.name: job for job in jobs}
        for name, job in self._active.items():
            if name not in active:
                run = Run(float(now), name, job.held_seconds * job.gpus)
                self.history.add(_workload(job), run)
                self.history.add(_family(job), run)
        self._active = active
        for job in jobs:
            if job.placement and job.progress > 0:
                self._pace[job.name] = 1 / job.rate()

    def _key(self, job: GangJob, now: int) -> OrderKey:
        contender = OrderEntry(
            uid=job.name,
            arrived_seconds=job.submit_seconds,
            gpus=job.gpus,
            running=bool(job.allocation),
            remaining_seconds=self._remaining(job) if self.estimates else None,
            attained_seconds=job.held_seconds,
            restart_seconds=RESTART_SECONDS,
        )
        return order_key(contender, now, self.rules)

    def _remaining(self, job: GangJob) -> float | None:
        pace = self._pace.get(job.name)
        if pace is None:
            alike = self.history.expected_seconds(_workload(job), job.gpus)
            family = self.history.expected_seconds(_family(job), job.gpus)
            return alike if alike is not None else family
        total = job.application.progress_after(job.application.epochs)
        return remaining_seconds(job.progress, total, pace)


def _workload(job: GangJob) -> tuple[str, int, int]:
    return job.application.name, job.gpus, job.batch


def _family(job: GangJob) -> str:
    return job.application.name


def _place(chosen: Sequence[GangJob]) -> dict[str, tuple[int, ...]]:
    """Who runs stays; new gangs, the largest first, go where they span fewest nodes."""
    free = {f"{node:04d}": GPUS_PER_NODE for node in range(NODES)}
    allocations: dict[str, tuple[int, ...]] = {}
    for job in chosen:
        for node in job.allocation:
            free[f"{node:04d}"] -= 1
        if job.allocation:
            allocations[job.name] = job.allocation
    waiting = [job for job in chosen if not job.allocation]
    for job in sorted(waiting, key=lambda job: (-job.gpus, job.name)):
        parts = place_gang(free, job.gpus)
        if parts is None:
            raise AssertionError(f"{job.name} was chosen and does not fit")
        for node, count in parts:
            free[node] -= count
        allocations[job.name] = tuple(int(node) for node, count in parts for _ in range(count))
    return allocations
