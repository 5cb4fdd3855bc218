"""The product's order and sharing rule on a Muri trace, with the published restart overheads.

What is ours comes from `gpujob_operator.decide` (order_key, choose_group, the slowdown law); what
is simulated here is the cluster: who runs how fast until the next arrival or completion. As in the
published simulations everything is placed anew at each event, first fit, and every running job pays
its restart time then. Iterations of different jobs are never interleaved by design: jobs on one
GPU run at the relative speeds that the slowdown rule states.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.muri.shortest import Nodes, same_time
from bench.muri.trace import TraceJob
from bench.sharing_model.interference import Calibration, SharingVerdict, Use
from bench.sharing_model.sharing import Judge, Tenant, choose_group, judge_by
from gpujob_operator.decide.model.configuration import OrderPolicy
from gpujob_operator.decide.queue.order import (
    OrderEntry,
    OrderKey,
    OrderRules,
    due_seconds,
    order_key,
)


@dataclass(frozen=True, slots=True)
class Setup:
    """How the product is set. `speed_factor` < 1 makes reality worse than the rule predicts."""

    max_slowdown_percent: float = 30.0
    tenants_max: int = 2
    lengths_known: bool = True
    speed_factor: float = 1.0
    rules: OrderRules = field(default_factory=lambda: OrderRules(OrderPolicy.SHORTEST))


def use_of(job: TraceJob) -> Use:
    """The measured profile: the share of an iteration which each resource is busy.

    Loading the next batch overlaps with computing, so that a share may come to over 100 %; it is
    then taken as 100.
    """
    alone = sum(job.stage_seconds) if not job.iteration_seconds else job.iteration_seconds
    shares = [min(100 * seconds / alone, 100.0) for seconds in job.stage_seconds]
    return Use(shares[1], {"data loading": shares[0], "network": shares[2]}, kind=job.model)


class Sharing:
    """The simulation of one trace under one setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.active: list[TraceJob] = []
        self.speeds: dict[int, float] = {}
        self._tenants: dict[tuple[str, int], Tenant] = {}
        self._keys: dict[int, tuple[float, OrderKey]] = {}
        self._judge = _remembering(judge_by(Calibration()))

    def simulate(self, jobs: list[TraceJob]) -> None:
        """Runs to the end and writes `end_seconds` into the jobs."""
        arrivals = list(jobs)
        end_time = math.inf
        while arrivals or self.active:
            start_time = arrivals[0].submit_seconds if arrivals else math.inf
            now = min(start_time, end_time)
            if now == math.inf:
                raise ValueError("a job needs more GPUs than the cluster has")
            self._advance(now)
            while arrivals and same_time(arrivals[0].submit_seconds, now):
                job = arrivals.pop(0)
                job.checked_seconds = now
                self.active.append(job)
            self._place(now)
            running = (job for job in self.active if job.running)
            end_time = min((self._end(job) for job in running), default=math.inf)

    def _end(self, job: TraceJob) -> float:
        return job.checked_seconds + job.remaining_seconds / self.speeds[job.index]

    def _advance(self, now: float) -> None:
        for job in self.active:
            last, job.checked_seconds = job.checked_seconds, now
            if not job.running:
                continue
            speed = self.speeds[job.index]
            if same_time(last + job.remaining_seconds / speed, now):
                job.end_seconds = now
            job.attained_seconds += now - last
            seconds = max(now - last - job.restart_seconds, 0)
            job.remaining_iterations -= seconds * speed / job.iteration_seconds
        self.active = [job for job in self.active if job.end_seconds is None]

    def _place(self, now: float) -> None:
        """GPUs in the product's order; who finds none free joins the best group, if any."""
        self.active.sort(key=lambda job: self._key(job, now))
        groups = _Round(self._judge, self.setup.tenants_max).fill(self.active, self._tenant)
        self.speeds = {}
        for members, tenants in groups:
            self._set_speeds(members, self._judge(tenants))
        for job in self.active:
            runs = job.index in self.speeds
            job.moves += runs and not job.running
            job.running = runs

    def _key(self, job: TraceJob, now: float) -> OrderKey:
        """The product's key. A waiting job's changes only once, when it becomes overdue."""
        known = self._keys.get(job.index)
        if known is None or job.running or known[0] <= now:
            contender = self._contender(job)
            due = due_seconds(contender, self.setup.rules)
            key = order_key(contender, now, self.setup.rules)
            known = (math.inf if due <= now else due, key)
            self._keys[job.index] = known
        if job.running:
            del self._keys[job.index]
        return known[1]

    def _set_speeds(self, group: list[TraceJob], verdict: SharingVerdict) -> None:
        factor = self.setup.speed_factor if len(group) > 1 else 1.0
        for job, speed in zip(group, verdict.relative_speeds, strict=True):
            self.speeds[job.index] = speed * factor

    def _tenant(self, job: TraceJob) -> Tenant:
        """Jobs of one model on equally many GPUs were measured alike: one tenant for all."""
        key = job.model, job.gpus
        if key not in self._tenants:
            self._tenants[key] = Tenant(use_of(job), self.setup.max_slowdown_percent)
        return self._tenants[key]

    def _contender(self, job: TraceJob) -> OrderEntry:
        return OrderEntry(
            uid=f"{job.index:08d}",
            arrived_seconds=job.submit_seconds,
            gpus=job.gpus,
            running=job.running,
            remaining_seconds=job.remaining_seconds if self.setup.lengths_known else None,
            attained_seconds=job.attained_seconds,
            restart_seconds=job.restart_seconds,
        )


_Group = tuple[list[TraceJob], list[Tenant]]


class _Round:
    """One filling of the empty cluster. What was refused once is refused to all that are alike,
    until something changes."""

    def __init__(self, judge: Judge, tenants_max: int) -> None:
        self.judge = judge
        self.tenants_max = tenants_max
        self.nodes = Nodes()
        self.groups: dict[int, list[_Group]] = {}
        self.full: set[int] = set()
        self.refused: dict[int, set[int]] = {}

    def fill(
        self, jobs: Iterable[TraceJob], tenant_of: Callable[[TraceJob], Tenant]
    ) -> list[_Group]:
        for job in jobs:
            if job.gpus not in self.full and self.nodes.place(job.gpus):
                self.groups.setdefault(job.gpus, []).append(([job], [tenant_of(job)]))
                self.refused[job.gpus] = set()
            else:
                self.full.add(job.gpus)
                self._join(job, tenant_of(job))
        return [group for same_size in self.groups.values() for group in same_size]

    def _join(self, job: TraceJob, tenant: Tenant) -> None:
        refused = self.refused.setdefault(job.gpus, set())
        if id(tenant) in refused:
            return
        groups = self.groups.get(job.gpus, [])
        offered = [tenants for _, tenants in groups]
        choice = choose_group(tenant, offered, self.judge, self.tenants_max)
        if choice is None:
            refused.add(id(tenant))
            return
        members, tenants = groups[choice.index]
        members.append(job)
        tenants.append(tenant)
        self.refused[job.gpus] = set()


def _remembering(judge: Judge) -> Judge:
    """The same verdict for the same tenants without working it out again."""
    known: dict[tuple[int, ...], SharingVerdict] = {}

    def remembered(tenants: Sequence[Tenant]) -> SharingVerdict:
        key = tuple(map(id, tenants))
        if key not in known:
            known[key] = judge(tenants)
        return known[key]

    return remembered
