"""Estimates how long a job will still run, from its own measured pace or else from earlier runs.

The result is `order.OrderEntry.remaining_seconds`. A job that has not run, and whose workload has
no finished run, has no estimate.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.protection import durable_checkpoint, why_unprotected

# How many of a workload's newest runs count.
RUNS_MAX = 16


def remaining_seconds(done: float, total: float | None, seconds_per_unit: float) -> float | None:
    """Returns the remaining units times the measured seconds of one, or None if either is unknown.

    A unit is a step, or whatever the job counts its progress in.
    """
    if total is None or not 0 < seconds_per_unit < float("inf"):
        return None
    return max(total - done, 0.0) * seconds_per_unit


def remaining_of(job: GPUJob, configuration: Configuration) -> float | None:
    """Returns the remaining seconds of a job that has reported its pace and its number of steps."""
    measured = job.status.measurement
    if measured is None or measured.current is None:
        return None
    done = _steps_behind(job, measured.step, configuration)
    return remaining_seconds(done, measured.steps_total, measured.current.step_seconds)


def _steps_behind(job: GPUJob, measured_step: int, configuration: Configuration) -> int:
    """Returns the number of steps that need not be repeated.

    That is the measured step if the attempt has reported where it began. Before that, and between
    attempts, it is the step from which the next attempt resumes. Steps beyond it that an earlier
    attempt reached are lost.
    """
    status = job.status
    said = status.attempt == 1 or status.resumed_from_step is not None
    if status.placement is not None and said:
        return measured_step
    saved = durable_checkpoint(job, configuration)
    if saved is not None:
        return saved.step
    own = job.spec.checkpoint.path is not None and why_unprotected(job, configuration) is None
    # A script's own checkpoints are not reported, so everything that it reached counts as saved.
    return measured_step if own else 0


class Run(NamedTuple):
    """A finished run: its end in seconds, its job, and the GPU-seconds that it took."""

    finished_at: float
    uid: str
    gpu_seconds: float


@dataclass(slots=True)
class RunHistory:
    """Finished runs by workload."""

    # The runs of each workload in the order of their ends.
    _runs: dict[Hashable, list[Run]] = field(default_factory=dict[Hashable, list[Run]])
    _medians: dict[Hashable, float] = field(default_factory=dict[Hashable, float])

    def add(self, workload: Hashable, run: Run) -> None:
        insort(self._runs.setdefault(workload, []), run)
        self._medians.pop(workload, None)

    def remove(self, workload: Hashable, run: Run) -> None:
        """Removes a run that was added."""
        runs = self._runs[workload]
        del runs[bisect_left(runs, run)]
        if not runs:
            del self._runs[workload]
        self._medians.pop(workload, None)

    def expected_seconds(self, workload: Hashable, gpus: int) -> float | None:
        """Returns the median of the newest runs, for a job on this many GPUs, or None
        without runs.
        """
        if workload not in self._runs:
            return None
        if workload not in self._medians:
            newest = self._runs[workload][-RUNS_MAX:]
            self._medians[workload] = median(run.gpu_seconds for run in newest)
        return self._medians[workload] / gpus
