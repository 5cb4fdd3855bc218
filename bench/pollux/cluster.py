"""The published simulation: every 60 s the jobs advance, then the policy allocates GPUs.

A job whose GPUs change makes no progress for 30 s. Time goes in whole seconds; the end of an epoch
is rounded to one, as published.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.pollux.application import Application, BatchPlan, Placement

NODES = 16
GPUS_PER_NODE = 4
INTERVAL_SECONDS = 60
RESTART_SECONDS = 30
_HOURS_MAX = 24 * 60


@dataclass(eq=False, slots=True)
class GangJob:
    """A gang of `gpus` fixed GPUs with a fixed batch."""

    name: str
    application: Application
    submit_seconds: int
    gpus: int
    batch: int
    # What the simulation writes: one node index a GPU.
    allocation: tuple[int, ...] = ()
    placement: Placement = ()
    restart_left_seconds: int = 0
    progress: float = 0.0
    epoch: int = 0
    end_seconds: int | None = None
    restarts: int = 0
    held_seconds: int = 0
    plan: BatchPlan = field(default=BatchPlan(1, 0))

    def advance(self, now: int, seconds: int) -> None:
        """Lets the job run from `now` for `seconds`."""
        if not self.placement or self.end_seconds is not None:
            return
        self.held_seconds += seconds
        delay = min(self.restart_left_seconds, seconds)
        self.restart_left_seconds -= delay
        now, seconds = now + delay, seconds - delay
        while seconds > 0 and self.end_seconds is None:
            rate = self.rate()
            target = self.application.progress_after(self.epoch + 1)
            if self.progress + rate * seconds < target:
                self.progress += rate * seconds
                return
            spent = round((target - self.progress) / rate)
            now, seconds = now + spent, seconds - spent
            self.progress = target
            self.epoch += 1
            if self.epoch == self.application.epochs:
                self.end_seconds = now

    def rate(self) -> float:
        """Progress a second where the job now runs."""
        return self.rate_at(self.placement)

    def rate_at(self, placement: Placement) -> float:
        total = self.gpus * self.plan.gpu_batch * (self.plan.accumulated + 1)
        gain = self.application.gain(total, self.epoch)
        return gain / self.application.iteration_seconds(placement, self.plan)

    def allocate(self, allocation: tuple[int, ...]) -> None:
        if allocation == self.allocation:
            return
        self.allocation = allocation
        self.placement = placement_of(allocation)
        if allocation:
            self.restart_left_seconds = RESTART_SECONDS
            self.restarts += 1


def placement_of(allocation: Sequence[int]) -> Placement:
    """GPUs of one node that follow each other are one part."""
    parts: list[int] = []
    for index, node in enumerate(allocation):
        if index and node == allocation[index - 1]:
            parts[-1] += 1
        else:
            parts.append(1)
    return tuple(parts)


class Policy(Protocol):
    def allocate(self, jobs: Sequence[GangJob], now: int) -> Mapping[str, tuple[int, ...]]:
        """Nodes by job; jobs that are not named hold nothing."""
        ...


def simulate(jobs: Sequence[GangJob], policy: Policy) -> None:
    """Runs all jobs to their end and writes `end_seconds`. Raises ValueError after 60 days."""
    for job in jobs:
        job.plan = job.application.batch_plan(job.batch, job.gpus)
    for now in _times():
        active = [job for job in jobs if job.submit_seconds <= now and job.end_seconds is None]
        if active:
            _apply(active, policy.allocate(active, now))
        for job in jobs:
            job.advance(now, INTERVAL_SECONDS)
        if all(job.end_seconds is not None for job in jobs):
            return
    raise ValueError(f"not all jobs ended within {_HOURS_MAX} hours")


def _times() -> Iterator[int]:
    yield from range(INTERVAL_SECONDS, _HOURS_MAX * 3600, INTERVAL_SECONDS)


def _apply(active: Sequence[GangJob], allocations: Mapping[str, tuple[int, ...]]) -> None:
    used = [0] * NODES
    for allocation in allocations.values():
        for node in allocation:
            used[node] += 1
    if max(used) > GPUS_PER_NODE:
        raise ValueError(f"a policy put {max(used)} jobs' GPUs on a node of {GPUS_PER_NODE}")
    for job in active:
        job.allocate(allocations.get(job.name, ()))


def read_workload(path: Path, applications: Mapping[str, Application]) -> list[GangJob]:
    """The jobs of a workload file in its order."""
    with path.open(newline="") as file:
        return [
            GangJob(
                name=row["name"],
                application=applications[row["application"]],
                submit_seconds=int(row["time"]),
                gpus=int(row["num_replicas"]),
                batch=int(row["batch_size"]),
            )
            for row in csv.DictReader(file)
        ]


def average_jct_seconds(jobs: Sequence[GangJob]) -> float:
    return sum((job.end_seconds or math.inf) - job.submit_seconds for job in jobs) / len(jobs)
