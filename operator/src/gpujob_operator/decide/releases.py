"""When running jobs are expected to give their cards back, and how long waiting ones will take.

From a job's own measured pace where it says how many steps it has, else from runs of the same
workload that succeeded. Nothing known is infinite: nobody counts on it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.estimate import RunHistory, remaining_seconds
from gpujob_operator.decide.profiles import profile_name

_Workload = tuple[str, str]


def _workload(job: GPUJob) -> _Workload:
    return job.metadata.namespace, profile_name(job)


@dataclass(slots=True)
class Releases:
    """Expected seconds from now. Estimates are made when first asked for."""

    now: datetime
    jobs: Mapping[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    workload_of: Callable[[GPUJob], _Workload] = _workload
    _history: RunHistory | None = None
    _known: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, jobs: Iterable[GPUJob], now: datetime) -> "Releases":
        return cls(now, {job.metadata.uid: job for job in jobs})

    def seconds(self, uid: str) -> float:
        """Until this job's cards are free; infinite when nobody can tell."""
        if uid not in self._known:
            job = self.jobs.get(uid)
            self._known[uid] = inf if job is None else self._release(job)
        return self._known[uid]

    def stopping(self, uid: str) -> bool:
        job = self.jobs.get(uid)
        return job is not None and job.status.phase is JobPhase.STOPPING

    def length_seconds(self, job: GPUJob) -> float:
        """How long a waiting job will run, what it did in earlier attempts excluded."""
        left = _own_remaining(job)
        return self._expected(job) if left is None else left

    def _release(self, job: GPUJob) -> float:
        stop = job.status.stop
        if job.status.phase is JobPhase.STOPPING and stop is not None:
            return max((stop.deadline - self.now).total_seconds(), 0.0)
        left = _own_remaining(job)
        if left is not None:
            return max(left - self._age(job.status.observed_at), 0.0)
        whole = self._expected(job)
        past = self._age(job.status.attempt_started_at)
        # One that has run longer than its like is not expected to end at once.
        return whole - past if past < whole else inf

    def _age(self, moment: datetime | None) -> float:
        return max((self.now - moment).total_seconds(), 0.0) if moment is not None else 0.0

    def _expected(self, job: GPUJob) -> float:
        if self._history is None:
            self._history = self._runs()
        workload = self.workload_of(job)
        expected = self._history.expected_seconds(workload, workload, _cards(job))
        return inf if expected is None else expected

    def _runs(self) -> RunHistory:
        """What the succeeded runs took, oldest first."""
        ended = [
            (job.status.finished_at, job.metadata.uid, job.status.started_at, job)
            for job in self.jobs.values()
            if job.status.phase is JobPhase.SUCCEEDED
            and job.status.finished_at is not None
            and job.status.started_at is not None
        ]
        history = RunHistory()
        for finished_at, _, started_at, job in sorted(ended, key=lambda run: run[:2]):
            workload = self.workload_of(job)
            seconds = max((finished_at - started_at).total_seconds(), 0.0)
            history.finished(workload, workload, seconds * _cards(job))
        return history


def _cards(job: GPUJob) -> int:
    return job.spec.workers * job.spec.gpus_per_worker


def _own_remaining(job: GPUJob) -> float | None:
    measured = job.status.measurement
    if measured is None or measured.current is None:
        return None
    return remaining_seconds(measured.step, measured.steps_total, measured.current.step_seconds)
