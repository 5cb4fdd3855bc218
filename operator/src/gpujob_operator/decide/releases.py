"""When running jobs are expected to give their cards back, and how long waiting ones will take.

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
from gpujob_operator.decide.estimate import Run, RunHistory, remaining_seconds
from gpujob_operator.decide.profiles import profile_name

_Workload = tuple[str, str]
# Runs of a workload on so many cards.
_Like = tuple[_Workload, int]


@dataclass(frozen=True, slots=True)
class _End:
    """When a job's cards are free, in seconds since 1970; or, with `like`, since when it runs, for
    as long as those did."""

    at: float
    like: _Like | None = None


_UNKNOWN = _End(inf)


@dataclass(slots=True)
class Releases:
    """Estimates are made when first asked for, and hold while the job is the same object."""

    # Seconds since 1970.
    now_seconds: float = 0.0
    # Another one whenever another moment could be found of any job.
    version: int = 0
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    _workloads: dict[str, _Workload] = field(default_factory=dict[str, _Workload])
    _history: RunHistory = field(default_factory=RunHistory)
    # What each succeeded job adds to it.
    _runs: dict[str, Run] = field(default_factory=dict[str, Run])
    _ends: dict[str, _End] = field(default_factory=dict[str, _End])
    # How long runs are expected to take, while the history is the same.
    _lengths: dict[_Like, float] = field(default_factory=dict[_Like, float])

    @classmethod
    def of(cls, jobs: Iterable[GPUJob], now: datetime) -> "Releases":
        releases = cls(now.timestamp())
        for job in jobs:
            releases.put(job)
        return releases

    def begin(self, now: datetime) -> None:
        """Another cycle: from now on this is the time."""
        self.now_seconds = now.timestamp()
        self.version += 1

    def put(self, job: GPUJob, workload: _Workload | None = None) -> None:
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

    def moment(self, uid: str) -> float:
        """When this job's cards are free, in seconds since 1970, perhaps past; infinite when
        nobody can tell."""
        return self.moments((uid,))[0]

    def moments(self, uids: Iterable[str]) -> list[float]:
        """The same of many."""
        ends, lengths, now = self._ends, self._lengths, self.now_seconds
        found: list[float] = []
        for uid in uids:
            end = ends.get(uid) or self._find_end(uid)
            if end.like is None:
                found.append(end.at)
                continue
            length = lengths.get(end.like)
            at = end.at + (self._length(end.like) if length is None else length)
            # One that has run longer than its like is not expected to end at once.
            found.append(at if at > now else inf)
        return found

    def seconds(self, uid: str) -> float:
        """The same from now."""
        return max(self.moment(uid) - self.now_seconds, 0.0)

    def stopping(self, uid: str) -> bool:
        job = self.jobs.get(uid)
        return job is not None and job.status.phase is JobPhase.STOPPING

    def length_seconds(self, job: GPUJob) -> float:
        """How long a waiting job will run, what it did in earlier attempts excluded."""
        left = _own_remaining(job)
        if left is not None:
            return left
        workload = self._workloads.get(job.metadata.uid)
        workload = workload or (job.metadata.namespace, profile_name(job))
        return self._length((workload, _cards(job)))

    def _find_end(self, uid: str) -> _End:
        job = self.jobs.get(uid)
        end = self._ends[uid] = _UNKNOWN if job is None else self._end_of(job)
        return end

    def _end_of(self, job: GPUJob) -> _End:
        status, stop = job.status, job.status.stop
        if status.phase is JobPhase.STOPPING and stop is not None:
            return _End(stop.deadline.timestamp())
        left = _own_remaining(job)
        if left is not None and status.observed_at is not None:
            return _End(status.observed_at.timestamp() + left)
        if status.attempt_started_at is None:
            return _UNKNOWN
        workload = self._workloads[job.metadata.uid]
        return _End(status.attempt_started_at.timestamp(), (workload, _cards(job)))

    def _length(self, like: _Like) -> float:
        if like not in self._lengths:
            expected = self._history.expected_seconds(*like)
            # Nobody knows it better than to two digits.
            self._lengths[like] = inf if expected is None else float(f"{expected:.2g}")
        return self._lengths[like]


def _run_of(job: GPUJob) -> Run | None:
    """What a succeeded run took."""
    status = job.status
    if status.phase is not JobPhase.SUCCEEDED:
        return None
    if status.finished_at is None or status.started_at is None:
        return None
    seconds = max((status.finished_at - status.started_at).total_seconds(), 0.0)
    return Run(status.finished_at.timestamp(), job.metadata.uid, seconds * _cards(job))


def _cards(job: GPUJob) -> int:
    return job.spec.workers * job.spec.gpus_per_worker


def _own_remaining(job: GPUJob) -> float | None:
    measured = job.status.measurement
    if measured is None or measured.current is None:
        return None
    return remaining_seconds(measured.step, measured.steps_total, measured.current.step_seconds)
