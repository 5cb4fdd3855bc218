"""Draws how long runs last, from their own pace or from the lengths of ended runs.

A draw is a quantile, which depends only on its number and the job. A later calculation therefore
repeats the same futures, and its ranges move only if the cluster changed.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from math import exp, log, sqrt
from statistics import NormalDist, fmean

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.measurement.fingerprint import program_of
from gpujob_operator.decide.measurement.profile import workload_keys
from gpujob_operator.decide.measurement.runtime import remaining_of
from gpujob_operator.decide.model.configuration import Configuration

# Newest ended runs of a workload, a program or a queue that count.
RUNS_MAX = 64
# Standard deviation of the logarithm of a measured remaining time.
PACE_SPREAD = 0.05
# Runs of one workload are about as different as this, which counts as much as two runs.
PRIOR_SPREAD = 0.3
PRIOR_RUNS = 2
# Less than this is left of a sample if a run was longer than all of its runs.
TAIL_MIN = 1e-3
# Quantiles closer to 0 and 1 count as this.
EDGE = 1e-3
_NORMAL = NormalDist()


def uniform(*key: object) -> float:
    """Returns a number between 0 and 1, both excluded, that depends only on the key."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


@dataclass(frozen=True, slots=True)
class RunSample:
    """GPU-seconds of runs, as logarithms in ascending order, each with its weight."""

    logs: tuple[float, ...]
    # Their sum is the number of runs.
    weights: tuple[float, ...]
    # Standard deviation with which a run is repeated.
    spread: float

    @classmethod
    def of(cls, gpu_seconds: Iterable[float], so_far: Iterable[float] = ()) -> "RunSample":
        """Returns the sample of ended runs, and of running ones that have taken `so_far`.

        Without the running ones, long runs would be missing from the sample until they end.
        """
        runs = [(log(max(one, 1.0)), True) for one in gpu_seconds]
        runs += [(log(max(one, 1.0)), False) for one in so_far]
        logs, weights = _redistributed(sorted(runs))
        mean = fmean(logs)
        squares = sum((one - mean) ** 2 for one in logs) + PRIOR_RUNS * PRIOR_SPREAD**2
        deviation = sqrt(squares / (PRIOR_RUNS + len(logs) - 1))
        # The rule of Silverman, without which a few runs would count as all that can happen.
        return cls(logs, weights, deviation * len(logs) ** -0.2)

    def draw(self, quantile: float, seconds: float, gpus: int) -> float:
        """Returns the seconds that a run on this number of GPUs still takes after `seconds`."""
        if seconds <= 0:
            return self._value(quantile * sum(self.weights), list(self.weights)) / gpus
        before = log(seconds * gpus)
        tails = [
            weight * (1.0 - self._cdf(before, one))
            for one, weight in zip(self.logs, self.weights, strict=True)
        ]
        left = sum(tails)
        if left < TAIL_MIN:
            # Longer than every run. As long again, in the median.
            return seconds * (1.0 / quantile - 1.0)
        total = self._value(quantile * left, tails) / gpus
        return max(total - seconds, 0.0)

    def _value(self, target: float, tails: list[float]) -> float:
        """Returns the GPU-seconds at which this much of the tails is reached."""
        number = 0
        while number < len(tails) - 1 and target > tails[number]:
            target -= tails[number]
            number += 1
        tail = tails[number]
        part = min(max(target / tail, EDGE), 1.0 - EDGE) if tail > 0 else 0.5
        left = tail / self.weights[number]
        reached = min(max(1.0 - left * (1.0 - part), EDGE), 1.0 - EDGE)
        return exp(self.logs[number] + self.spread * _NORMAL.inv_cdf(reached))

    def _cdf(self, value: float, center: float) -> float:
        return _NORMAL.cdf((value - center) / self.spread)


def _redistributed(
    runs: list[tuple[float, bool]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the runs that count, and their weights (Efron's form of the estimate of Kaplan and
    Meier: each run that has not ended leaves its weight to all longer ones).

    The longest run counts even if it has not ended.
    """
    logs: list[float] = []
    weights: list[float] = []
    weight = 1.0
    for number, (value, ended) in enumerate(runs):
        longer = len(runs) - number - 1
        if ended or not longer:
            logs.append(value)
            weights.append(weight)
        else:
            weight += weight / longer
    return tuple(logs), tuple(weights)


@dataclass(slots=True)
class RunLengths:
    """The run times of a snapshot's jobs, as far as their own pace or ended runs show them."""

    configuration: Configuration
    now: datetime
    pace_spread: float = PACE_SPREAD
    _runs: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])
    # GPU-seconds so far of running jobs whose end is unknown.
    _so_far: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])
    _samples: dict[Hashable, RunSample] = field(default_factory=dict[Hashable, RunSample])
    _keys: dict[str, tuple[Hashable, ...]] = field(default_factory=dict[str, tuple[Hashable, ...]])

    @classmethod
    def of(
        cls,
        jobs: Iterable[GPUJob],
        now: datetime,
        configuration: Configuration,
        pace_spread: float = PACE_SPREAD,
    ) -> "RunLengths":
        found, jobs = cls(configuration, now, pace_spread), tuple(jobs)
        ended = [(job, seconds) for job in jobs if (seconds := _ended_seconds(job)) is not None]
        ended.sort(key=lambda one: (one[0].status.finished_at, one[0].metadata.uid), reverse=True)
        for job, seconds in ended:
            for key in _classes(job):
                runs = found._runs.setdefault(key, [])
                if len(runs) < RUNS_MAX:
                    runs.append(seconds * job.spec.gpus)
        for job in jobs:
            found._add_running(job)
        return found

    def _add_running(self, job: GPUJob) -> None:
        """Adds a running job: its whole run if its own pace shows the end, else the run so far."""
        status = job.status
        started = status.attempt_started_at
        if status.phase is not JobPhase.RUNNING or started is None:
            return
        passed = max((self.now - started).total_seconds(), 0.0)
        left = remaining_of(job, self.configuration)
        for key in _classes(job):
            # Runs of a class without any that ended say nothing of its lengths yet.
            if key not in self._runs:
                continue
            known = self._runs[key] if left is not None else self._so_far.setdefault(key, [])
            if len(known) < 2 * RUNS_MAX:
                known.append((passed + (left or 0.0)) * job.spec.gpus)

    def is_known(self, job: GPUJob) -> bool:
        return remaining_of(job, self.configuration) is not None or self._sample(job) is not None

    def seconds(self, job: GPUJob, now: datetime, quantile: float) -> float | None:
        """Returns how long the job's attempt still runs if it runs at `now`, or None."""
        left = remaining_of(job, self.configuration)
        started = job.status.attempt_started_at
        if left is not None:
            at = job.status.observed_at
            gone = (now - at).total_seconds() if at is not None and now <= self.now else 0.0
            spread = self.pace_spread * _NORMAL.inv_cdf(quantile)
            return max(left - max(gone, 0.0), 0.0) * exp(spread)
        sample = self._sample(job)
        if sample is None:
            return None
        passed = (now - started).total_seconds() if started is not None else 0.0
        return sample.draw(quantile, max(passed, 0.0), job.spec.gpus)

    def _sample(self, job: GPUJob) -> RunSample | None:
        """Returns the runs of the workload, else of the program, else of the queue."""
        uid = job.metadata.uid
        keys = self._keys.get(uid)
        if keys is None:
            keys = self._keys[uid] = tuple(_classes(job))
        key = next((one for one in keys if one in self._runs), None)
        if key is None:
            return None
        if key not in self._samples:
            self._samples[key] = RunSample.of(self._runs[key], self._so_far.get(key, ()))
        return self._samples[key]


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """The run times of one draw out of `draws`."""

    lengths: RunLengths
    draw: int
    draws: int

    def seconds(self, job: GPUJob, now: datetime) -> float | None:
        return self.lengths.seconds(job, now, stratified(job.metadata.uid, self.draw, self.draws))


def stratified(uid: str, draw: int, draws: int) -> float:
    """Returns the draw's quantile, of which each of `draws` equal parts of 0 to 1 holds one."""
    order = uniform(uid, draw)
    part = sum(uniform(uid, other) < order for other in range(draws))
    return (part + 0.5) / draws


def _classes(job: GPUJob) -> Iterator[Hashable]:
    namespace = job.metadata.namespace
    yield "workload", workload_keys(job).runs
    yield "program", namespace, program_of(job.spec)
    yield "queue", job.spec.queue


def _ended_seconds(job: GPUJob) -> float | None:
    """Returns for how long a finished job held its GPUs, or None if it never ran."""
    status = job.status
    if not status.finished or status.finished_at is None:
        return None
    if status.held_seconds is not None:
        return status.held_seconds
    if status.started_at is None:
        return None
    return max((status.finished_at - status.started_at).total_seconds(), 0.0)
