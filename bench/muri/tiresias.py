"""Tiresias as published there: queues by attained GPU time, first in first out, GPUs only counted.

A job sinks a queue when GPUs x seconds held pass 3,250, then 7,200. Events are arrivals, the next
completion and the next sinking; each costs every running job its restart time. Where the GPUs lie
plays no part, so that gangs of 16 and 32 always fit when enough GPUs are free.
"""

import math

from bench.muri.trace import GPUS_PER_NODE, NODES, TraceJob

_QUEUE_LIMIT_GPU_SECONDS = (3250, 7200)
_EVENTS_PER_JOB_MAX = 100


def simulate_tiresias(jobs: list[TraceJob]) -> None:
    """Runs the trace to its end and writes `end_seconds` into the jobs."""
    arrivals = list(jobs)
    queues: list[list[TraceJob]] = [[] for _ in range(len(_QUEUE_LIMIT_GPU_SECONDS) + 1)]
    active: list[TraceJob] = []
    end_time, jump_time = math.inf, math.inf
    for _ in range(_EVENTS_PER_JOB_MAX * len(jobs)):
        if not arrivals and not active:
            return
        start_time = arrivals[0].submit_seconds if arrivals else math.inf
        event_time = min(start_time, end_time)
        now = min(event_time, jump_time)
        if now == math.inf:
            raise ValueError("a job needs more GPUs than the cluster has")
        if event_time <= jump_time:
            if end_time == now:
                _finish(active, queues, now)
                active = [job for job in active if job.end_seconds is None]
            _arrive(arrivals, active, queues, now)
        for job in active:
            _advance(job, queues, now)
        _choose(queues)
        end_time = min((_end(job, now) for job in active if job.running), default=math.inf)
        jump_time = min((_jump(job, now) for job in active if job.running), default=math.inf)
    if arrivals or active:
        raise ValueError(f"{len(arrivals) + len(active)} jobs left after too many events")


def _end(job: TraceJob, now: float) -> float:
    return now + job.remaining_seconds


def _jump(job: TraceJob, now: float) -> float:
    if job.queue == len(_QUEUE_LIMIT_GPU_SECONDS):
        return math.inf
    limit = math.ceil(_QUEUE_LIMIT_GPU_SECONDS[job.queue] / job.gpus)
    return limit - job.attained_seconds + now


def _finish(active: list[TraceJob], queues: list[list[TraceJob]], now: float) -> None:
    for job in active:
        if job.running and _end(job, job.checked_seconds) == now:
            job.end_seconds = now
            queues[job.queue].remove(job)


def _arrive(
    arrivals: list[TraceJob], active: list[TraceJob], queues: list[list[TraceJob]], now: float
) -> None:
    while arrivals and math.isclose(arrivals[0].submit_seconds, now, rel_tol=1e-9):
        job = arrivals.pop(0)
        job.checked_seconds = now
        active.append(job)
        queues[0].append(job)


def _advance(job: TraceJob, queues: list[list[TraceJob]], now: float) -> None:
    last = job.checked_seconds
    job.checked_seconds = now
    if not job.running:
        return
    job.remaining_iterations -= max(now - last - job.restart_seconds, 0) / job.iteration_seconds
    # In this order: (now - last) first rounds otherwise, and a job may then never reach its limit.
    job.attained_seconds = job.attained_seconds + now - last
    if job.queue == len(_QUEUE_LIMIT_GPU_SECONDS):
        return
    if job.attained_seconds * job.gpus >= _QUEUE_LIMIT_GPU_SECONDS[job.queue]:
        queues[job.queue].remove(job)
        job.queue += 1
        queues[job.queue].append(job)


def _choose(queues: list[list[TraceJob]]) -> None:
    """Gives GPUs down the queues; what does not fit is passed over and waits at the back."""
    free = NODES * GPUS_PER_NODE
    for queue in queues:
        for job in queue:
            runs = job.gpus <= free
            free -= job.gpus * runs
            job.moves += runs and not job.running
            job.running = runs
        queue.sort(key=lambda job: not job.running)
