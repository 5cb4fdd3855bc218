"""Estimates when running jobs release their GPUs, and how long pending jobs will run.

The estimate uses the job's own measured pace if it reports how many steps it has, else runs of the
same workload that succeeded. Unknown is infinite, so that no decision relies on it.

Kept from cycle to cycle: `put` new and changed jobs, `drop` those that are gone, and set the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.measurement.runtime import Run, RunHistory, remaining_seconds

# A workload, as namespace and name of its profile.
Workload = tuple[str, str]
# Runs of a workload on this many GPUs.
RunClass = tuple[Workload, int]


@dataclass(frozen=True, slots=True)
class ReleaseTime:
    """When a job releases its GPUs, in seconds since 1970. With `run_class`: when it started; its
    expected run time is that of the class.
    """

    at: float
    run_class: RunClass | None = None

    def released_at(self, expected_run_seconds: float, now_seconds: float) -> float:
        """A job past its expected run time has an unknown end (infinite), not one that is now."""
        if self.run_class is None:
            return self.at
        at = self.at + expected_run_seconds
        return at if at > now_seconds else inf


UNKNOWN = ReleaseTime(inf)


@dataclass(slots=True)
class ReleaseTimes:
    """Estimates, computed on first use. An estimate holds while the job is the same object."""

    # Seconds since 1970.
    now_seconds: float = 0.0
    # Incremented when the release time of any job may have changed.
    version: int = 0
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    _workloads: dict[str, Workload] = field(default_factory=dict[str, Workload])
    _history: RunHistory = field(default_factory=RunHistory)
    # The run that each succeeded job contributes.
    _runs: dict[str, Run] = field(default_factory=dict[str, Run])
    _ends: dict[str, ReleaseTime] = field(default_factory=dict[str, ReleaseTime])
    # Expected run times, valid while the history is unchanged.
    _lengths: dict[RunClass, float] = field(default_factory=dict[RunClass, float])

    @classmethod
    def of(cls, jobs: Iterable[GPUJob], now: datetime) -> "ReleaseTimes":
        releases = cls(now.timestamp())
        for job in jobs:
            releases.put(job)
        return releases

    def begin(self, now: datetime) -> None:
        """Starts another cycle at this time."""
        self.now_seconds = now.timestamp()
        self.version += 1

    def put(self, job: GPUJob, workload: Workload | None = None) -> None:
        """Stores the job as it is now. `workload` is its profile's namespace and name, if known."""
        uid = job.metadata.uid
        self.drop(uid)
        workload = workload or (job.metadata.namespace, profile_name(job))
        self.jobs[uid], self._workloads[uid] = job, workload
        run = _run_of(job)
        if run is not None:
            self._runs[uid] = run
            self._history.add(workload, run)
            self._lengths.clear()

    def drop(self, uid: str) -> None:
        self.version += 1
        self._ends.pop(uid, None)
        self.jobs.pop(uid, None)
        workload = self._workloads.pop(uid, None)
        run = self._runs.pop(uid, None)
        if run is not None and workload is not None:
            self._history.remove(workload, run)
            self._lengths.clear()

    def released_at(self, uid: str) -> float:
        """When this job releases its GPUs, in seconds since 1970, possibly in the past; infinite if
        unknown.
        """
        end = self.end(uid)
        length = 0.0 if end.run_class is None else self.length(end.run_class)
        return end.released_at(length, self.now_seconds)

    def seconds(self, uid: str) -> float:
        """The same, in seconds from now."""
        return max(self.released_at(uid) - self.now_seconds, 0.0)

    def stopping(self, uid: str) -> bool:
        job = self.jobs.get(uid)
        return job is not None and job.status.phase is JobPhase.STOPPING

    def expected_run_seconds(self, job: GPUJob) -> float:
        """How long a pending job will run, without the time of its earlier attempts."""
        left = _own_remaining(job)
        if left is not None:
            return left
        workload = self._workloads.get(job.metadata.uid)
        workload = workload or (job.metadata.namespace, profile_name(job))
        return self.length((workload, _gpus(job)))

    def end(self, uid: str) -> ReleaseTime:
        """The release time as far as the job alone determines it; see `released_at`."""
        end, job = self._ends.get(uid), self.jobs.get(uid)
        if job is None:
            return UNKNOWN
        if end is None:
            end = self._ends[uid] = self._end_of(job)
        return end

    def _end_of(self, job: GPUJob) -> ReleaseTime:
        status, stop = job.status, job.status.stop
        if status.phase is JobPhase.STOPPING and stop is not None:
            return ReleaseTime(stop.deadline.timestamp())
        left = _own_remaining(job)
        if left is not None and status.observed_at is not None:
            return ReleaseTime(status.observed_at.timestamp() + left)
        if status.attempt_started_at is None:
            return UNKNOWN
        workload = self._workloads[job.metadata.uid]
        return ReleaseTime(status.attempt_started_at.timestamp(), (workload, _gpus(job)))

    def length(self, run_class: RunClass) -> float:
        """Expected duration of such runs in seconds; infinite if unknown."""
        if run_class not in self._lengths:
            expected = self._history.expected_seconds(*run_class)
            # The estimate is no more precise than two digits.
            self._lengths[run_class] = inf if expected is None else float(f"{expected:.2g}")
        return self._lengths[run_class]


def _run_of(job: GPUJob) -> Run | None:
    """The run of a succeeded job."""
    status = job.status
    if status.phase is not JobPhase.SUCCEEDED:
        return None
    if status.finished_at is None or status.started_at is None:
        return None
    seconds = max((status.finished_at - status.started_at).total_seconds(), 0.0)
    return Run(status.finished_at.timestamp(), job.metadata.uid, seconds * _gpus(job))


def _gpus(job: GPUJob) -> int:
    return job.spec.workers * job.spec.gpus_per_worker


def _own_remaining(job: GPUJob) -> float | None:
    measured = job.status.measurement
    if measured is None or measured.current is None:
        return None
    return remaining_seconds(measured.step, measured.steps_total, measured.current.step_seconds)
