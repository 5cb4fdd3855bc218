"""AntMan as published there: guaranteed jobs hold GPUs, opportunistic ones use what they leave.

Never preempts. A guaranteed job (priority 0) that finds too few free GPUs keeps the ones it found
and waits for the rest. An opportunistic job (priority 1) takes the least loaded GPUs below 80 %,
where a guaranteed job counts 0.1 and an opportunistic one 0.9, and is slowed by what it meets.
"""

import math
from dataclasses import dataclass, field

from bench.muri.shortest import next_end, same_time
from bench.muri.trace import GPUS_PER_NODE, NODES, TraceJob

_LOAD_LIMIT = 0.8
_LOAD = (0.1, 0.9)
# A guaranteed job's load is added in two parts: while it gathers GPUs and when it starts.
_START_LOAD = 0.01


@dataclass(slots=True)
class _GPU:
    node: int
    guaranteed: "_Held | None" = None
    opportunistic: list["_Held"] = field(default_factory=list["_Held"])
    load: float = 0.0


@dataclass(slots=True, eq=False)
class _Held:
    """A job and the GPUs which it has got so far."""

    job: TraceJob
    gpus: list[_GPU] = field(default_factory=list[_GPU])
    iteration_seconds: float = 0.0

    @property
    def missing(self) -> int:
        return self.job.gpus - len(self.gpus)


class AntMan:
    """The policy and its cluster; `simulate` runs a trace to its end."""

    def __init__(self) -> None:
        self.nodes = [[_GPU(node) for _ in range(GPUS_PER_NODE)] for node in range(NODES)]
        self.held: list[_Held] = []

    def simulate(self, jobs: list[TraceJob]) -> None:
        """Writes `end_seconds` into the jobs."""
        arrivals = list(jobs)
        end_time, ending = math.inf, list[TraceJob]()
        while arrivals or self.held:
            start_time = arrivals[0].submit_seconds if arrivals else math.inf
            now = min(start_time, end_time)
            if now == math.inf:
                raise ValueError("a job needs more GPUs than the cluster has")
            if end_time <= start_time:
                self._finish(ending, now)
            while arrivals and now == start_time and same_time(arrivals[0].submit_seconds, now):
                job = arrivals.pop(0)
                job.checked_seconds = now
                self.held.append(_Held(job, iteration_seconds=job.iteration_seconds))
            self._advance(now)
            self.held.sort(key=_order)
            self._place_all()
            end_time, ending = self._next_end(now)

    def _finish(self, ending: list[TraceJob], now: float) -> None:
        for held in self.held:
            if held.job in ending:
                held.job.end_seconds = now
                self._release(held)
        self.held = [held for held in self.held if held.job.end_seconds is None]

    def _release(self, held: _Held) -> None:
        for gpu in held.gpus:
            gpu.load -= _LOAD[held.job.priority]
            if held.job.priority:
                gpu.opportunistic.remove(held)
            else:
                gpu.guaranteed = None

    def _advance(self, now: float) -> None:
        for held in self.held:
            job = held.job
            if job.running:
                seconds = max(now - job.checked_seconds - job.restart_seconds, 0)
                job.remaining_iterations -= seconds / held.iteration_seconds
            job.checked_seconds = now

    def _place_all(self) -> None:
        for held in self.held:
            if not held.job.running and self._place(held):
                held.job.running = True
                held.job.moves += 1

    def _place(self, held: _Held) -> bool:
        if held.job.priority:
            return self._place_opportunistic(held)
        if held.job.gpus > GPUS_PER_NODE:
            self._gather_nodes(held)
        else:
            self._gather_gpus(held)
        if held.missing:
            return False
        for gpu in held.gpus:
            gpu.load += _START_LOAD
        return True

    def _place_opportunistic(self, held: _Held) -> bool:
        gpus = [gpu for node in self.nodes for gpu in node if gpu.load < _LOAD_LIMIT]
        if len(gpus) < held.job.gpus:
            return False
        held.gpus = sorted(gpus, key=lambda gpu: gpu.load)[: held.job.gpus]
        for gpu in held.gpus:
            gpu.load += _LOAD[1]
            gpu.opportunistic.append(held)
        return True

    def _gather_nodes(self, held: _Held) -> None:
        """Takes whole free nodes, as many as there are and are still missing."""
        free = [node for node in self.nodes if all(gpu.guaranteed is None for gpu in node)]
        for node in free[: held.missing // GPUS_PER_NODE]:
            _take(held, node)

    def _gather_gpus(self, held: _Held) -> None:
        """On one node: the first that has them all, else what the freest has; it stays there."""
        if held.gpus:
            _take(held, _free(self.nodes[held.gpus[0].node])[: held.missing])
            return
        choices = [_free(node) for node in self.nodes]
        enough = (gpus for gpus in choices if len(gpus) >= held.missing)
        chosen = next(enough, None) or max(choices, key=len)
        _take(held, chosen[: held.missing])

    def _next_end(self, now: float) -> tuple[float, list[TraceJob]]:
        for held in self.held:
            if held.job.running and held.job.priority:
                held.iteration_seconds = _shared_iteration_seconds(held)
        return next_end(
            [held.job for held in self.held],
            now,
            {held.job.index: held.iteration_seconds for held in self.held},
        )


def _order(held: _Held) -> tuple[int, float, int]:
    return held.job.priority, held.job.submit_seconds, held.job.index


def _free(node: list[_GPU]) -> list[_GPU]:
    return [gpu for gpu in node if gpu.guaranteed is None]


def _take(held: _Held, gpus: list[_GPU]) -> None:
    for gpu in gpus:
        gpu.guaranteed = held
        gpu.load += _LOAD[0] - _START_LOAD
        held.gpus.append(gpu)


def _shared_iteration_seconds(held: _Held) -> float:
    """The slowest GPU decides: the opportunistic job runs in its neighbours' gaps."""
    seconds = held.job.iteration_seconds
    for gpu in held.gpus:
        guaranteed = gpu.guaranteed
        if guaranteed is not None and guaranteed.missing == 0:
            seconds = max(seconds, _gap_seconds(held.job, guaranteed.job))
        if any(other is not held for other in gpu.opportunistic):
            seconds = max(seconds, held.job.iteration_seconds * 2.0)
    return seconds


def _gap_seconds(job: TraceJob, guaranteed: TraceJob) -> float:
    """How long one iteration takes, in whole iterations of the guaranteed job.

    Each stage fits into the time in which the other job uses the two other resources; what a last,
    partly used gap leaves over goes to the next stage.
    """
    load, compute, network = job.stage_seconds
    other_load, other_compute, other_network = guaranteed.stage_seconds
    iterations = math.floor(load / (other_compute + other_network))
    extra = load % (other_compute + other_network)
    if extra > 0:
        iterations += 1
        compute -= min(compute, other_network, other_compute + other_network - extra)
    iterations += math.floor(compute / (other_load + other_network))
    extra = compute % (other_load + other_network)
    if extra > 0:
        iterations += 1
        if extra < other_load:
            network -= min(network, other_load + other_compute - extra)
    iterations += math.floor(network / (other_load + other_compute))
    if network % (other_load + other_compute) > other_load:
        iterations += 1
    return iterations * guaranteed.iteration_seconds
