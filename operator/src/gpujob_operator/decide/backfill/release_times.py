"""When running jobs are expected to give their GPUs back, and how long waiting ones will take.

From a job's own measured pace where it says how many steps it has, else from runs of the same
workload that succeeded. Nothing known is infinite: nobody counts on it.

Kept from cycle to cycle: `put` jobs that are new or not the same any more, `drop` those that are
gone, and set the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.measurement.runtime import Run, RunHistory, remaining_seconds

# A workload, by its profile's namespace and name.
Workload = tuple[str, str]
# Runs of a workload on so many GPUs.
RunClass = tuple[Workload, int]


@dataclass(frozen=True, slots=True)
class ReleaseTime:
    """When a job's GPUs are free, in seconds since 1970; or, with `run_class`, since when it runs,
    for as long as those did."""

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
    """Estimates are made when first asked for, and hold while the job is the same object."""

    # Seconds since 1970.
    now_seconds: float = 0.0
    # Incremented when the release time of any job may have changed.
    version: int = 0
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    _workloads: dict[str, Workload] = field(default_factory=dict[str, Workload])
    _history: RunHistory = field(default_factory=RunHistory)
    # What each succeeded job adds to it.
    _runs: dict[str, Run] = field(default_factory=dict[str, Run])
    _ends: dict[str, ReleaseTime] = field(default_factory=dict[str, ReleaseTime])
    # How long runs are expected to take, while the history is the same.
    _lengths: dict[RunClass, float] = field(default_factory=dict[RunClass, float])

    @classmethod
    def of(cls, jobs: Iterable[GPUJob], now: datetime) -> "ReleaseTimes":
        releases = cls(now.timestamp())
        for job in jobs:
            releases.put(job)
        return releases

    def begin(self, now: datetime) -> None:
        """Another cycle: from now on this is the time."""
        self.now_seconds = now.timestamp()
        self.version += 1

    def put(self, job: GPUJob, workload: Workload | None = None) -> None:
        """This job as it is now. `workload` is its profile's namespace and name, if known."""
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
        """When this job's GPUs are free, in seconds since 1970, perhaps past; infinite when
        nobody can tell."""
        end = self.end(uid)
        length = 0.0 if end.run_class is None else self.length(end.run_class)
        return end.released_at(length, self.now_seconds)

    def seconds(self, uid: str) -> float:
        """The same from now."""
        return max(self.released_at(uid) - self.now_seconds, 0.0)

    def stopping(self, uid: str) -> bool:
        job = self.jobs.get(uid)
        return job is not None and job.status.phase is JobPhase.STOPPING

    def expected_run_seconds(self, job: GPUJob) -> float:
        """How long a waiting job will run, what it did in earlier attempts excluded."""
        left = _own_remaining(job)
        if left is not None:
            return left
        workload = self._workloads.get(job.metadata.uid)
        workload = workload or (job.metadata.namespace, profile_name(job))
        return self.length((workload, _gpus(job)))

    def end(self, uid: str) -> ReleaseTime:
        """As far as the job alone tells it; see `released_at`."""
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
        """How long such runs are expected to take, in seconds; infinite when nobody can tell."""
        if run_class not in self._lengths:
            expected = self._history.expected_seconds(*run_class)
            # Nobody knows it better than to two digits.
            self._lengths[run_class] = inf if expected is None else float(f"{expected:.2g}")
        return self._lengths[run_class]


def _run_of(job: GPUJob) -> Run | None:
    """What a succeeded run took."""
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
