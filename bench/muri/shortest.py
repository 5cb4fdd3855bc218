"""SRTF and SRSF: the shortest remaining time (or GPU time) first, everything placed anew.

At every arrival and completion the cluster is emptied and filled in order, first fit; a job that
does not fit is passed over. Every job that was running pays its restart time.
"""

import math
from collections.abc import Mapping

from bench.muri.trace import GPUS_PER_NODE, NODES, TraceJob


class Nodes:
    """Free GPUs by node, first fit: up to a node's GPUs on one node, more on idle nodes."""

    def __init__(self) -> None:
        self.free = [GPUS_PER_NODE] * NODES

    def place(self, gpus: int) -> bool:
        """Takes the GPUs where they fit."""
        if gpus > GPUS_PER_NODE:
            return self._place_whole_nodes(gpus)
        for node, free in enumerate(self.free):
            if free >= gpus:
                self.free[node] -= gpus
                return True
        return False

    def _place_whole_nodes(self, gpus: int) -> bool:
        idle = [node for node, free in enumerate(self.free) if free == GPUS_PER_NODE]
        needed = gpus // GPUS_PER_NODE
        if len(idle) < needed:
            return False
        for node in idle[:needed]:
            self.free[node] = 0
        return True


def simulate_shortest(jobs: list[TraceJob], by_gpu_time: bool) -> None:
    """Runs the trace to its end and writes `end_seconds` into the jobs."""
    arrivals = list(jobs)
    active: list[TraceJob] = []
    ending: list[TraceJob] = []
    end_time = math.inf
    while arrivals or active:
        start_time = arrivals[0].submit_seconds if arrivals else math.inf
        now = min(start_time, end_time)
        if now == math.inf:
            raise ValueError("a job needs more GPUs than the cluster has")
        if end_time <= start_time:
            for job in ending:
                job.end_seconds = now
            active = [job for job in active if job.end_seconds is None]
        while arrivals and now == start_time and same_time(arrivals[0].submit_seconds, now):
            job = arrivals.pop(0)
            job.checked_seconds = now
            active.append(job)
        progress(active, now)
        active.sort(key=lambda job: job.remaining_seconds * (job.gpus if by_gpu_time else 1))
        place_all(active)
        end_time, ending = next_end(active, now)


def same_time(first: float, second: float) -> bool:
    """The published simulator merges events that are this close."""
    return math.isclose(first, second, rel_tol=1e-9)


def progress(active: list[TraceJob], now: float) -> None:
    """Lets what ran since the last event advance, less one restart time each."""
    for job in active:
        if job.running:
            seconds = max(now - job.checked_seconds - job.restart_seconds, 0)
            job.remaining_iterations -= seconds / job.iteration_seconds
        job.checked_seconds = now


def place_all(active: list[TraceJob]) -> None:
    """Fills the empty cluster in the list's order."""
    nodes = Nodes()
    for job in active:
        placed = nodes.place(job.gpus)
        job.moves += placed and not job.running
        job.running = placed


def next_end(
    active: list[TraceJob], now: float, iteration_seconds: Mapping[int, float] | None = None
) -> tuple[float, list[TraceJob]]:
    """When the next jobs end and which they are; events are merged in the order of the list.

    `iteration_seconds` by the job's index, where it is not what the job takes alone.
    """
    known = iteration_seconds or {}
    groups: list[tuple[float, list[TraceJob]]] = []
    for job in active:
        if not job.running:
            continue
        seconds = known.get(job.index, job.iteration_seconds)
        time = now + job.remaining_iterations * seconds
        for first, members in groups:
            if same_time(first, time):
                members.append(job)
                break
        else:
            groups.append((time, [job]))
    return min(groups, key=lambda group: group[0], default=(math.inf, []))
