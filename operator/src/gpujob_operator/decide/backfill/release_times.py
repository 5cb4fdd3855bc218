"""Estimates when running jobs release their GPUs, and how long pending jobs will run.

The estimate uses the job's own measured pace if it reports how many steps it has, and otherwise
succeeded runs of the same workload. An unknown time is infinite, so that no decision relies on it.

Estimates are kept from cycle to cycle: `put` new and changed jobs, `drop` jobs that are gone, and
set the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.measurement.fingerprint import program_of
from gpujob_operator.decide.measurement.profile import workload_keys
from gpujob_operator.decide.measurement.runtime import Run, RunHistory, remaining_of
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import awaited_until

# Runs that take equally long. See `WorkloadKeys`.
Workload = tuple[str, str]
# Workloads of one program: its namespace, image and command without options.
Family = tuple[str, tuple[str, ...]]
# Runs of a workload or a family on this many GPUs.
RunClass = tuple[Workload | Family, int]


@dataclass(frozen=True, slots=True)
class ReleaseTime:
    """When a job releases its GPUs, as a Unix time in seconds.

    With `run_class`, `at` is when the job started, and its expected run time is that of the class.
    The release time is unknown from `unknown_from` on.
    """

    at: float
    run_class: RunClass | None = None
    unknown_from: float = inf

    def released_at(self, expected_run_seconds: float, now_seconds: float) -> float:
        """Returns the release time as a Unix time in seconds.

        A job past its expected run time, or past the deadline of its stop, has an unknown end,
        which is infinite, and not an immediate one.
        """
        if now_seconds >= self.unknown_from:
            return inf
        if self.run_class is None:
            return self.at
        at = self.at + expected_run_seconds
        return at if at > now_seconds else inf


UNKNOWN = ReleaseTime(inf)


class _KnownRun(NamedTuple):
    run: Run
    workload: Workload
    family: Family


@dataclass(slots=True)
class ReleaseTimes:
    """Estimates, computed on first use. An estimate holds while the job is the same object."""

    # Unix time in seconds.
    now_seconds: float = 0.0
    configuration: Configuration = field(default_factory=Configuration)
    # Incremented when the release time of any job may have changed.
    version: int = 0
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    _workloads: dict[str, Workload] = field(default_factory=dict[str, Workload])
    _history: RunHistory = field(default_factory=RunHistory)
    # What each succeeded job adds to the history, and to which workload and family.
    _runs: dict[str, _KnownRun] = field(default_factory=dict[str, _KnownRun])
    # Families that were looked up, by the job's UID.
    _families: dict[str, Family] = field(default_factory=dict[str, Family])
    # Workloads and families whose runs changed since the last call of `take_changed`.
    _changed: set[Workload | Family] = field(default_factory=set[Workload | Family])
    # Their expected seconds on one GPU, as of that call.
    _taken: dict[Workload | Family, float] = field(default_factory=dict[Workload | Family, float])
    _ends: dict[str, ReleaseTime] = field(default_factory=dict[str, ReleaseTime])
    # How long each job will run: in seconds, or as long as runs of this class.
    _remaining: dict[str, float | RunClass] = field(default_factory=dict[str, float | RunClass])
    # Expected run times, valid while the history is unchanged.
    _lengths: dict[RunClass, float] = field(default_factory=dict[RunClass, float])

    @classmethod
    def of(
        cls,
        jobs: Iterable[GPUJob],
        now: datetime,
        configuration: Configuration | None = None,
    ) -> "ReleaseTimes":
        releases = cls(now.timestamp(), configuration or Configuration())
        for job in jobs:
            releases.put(job)
        return releases

    def begin(self, now: datetime) -> None:
        """Starts another cycle at this time."""
        self.now_seconds = now.timestamp()
        self.version += 1

    def put(self, job: GPUJob, workload: Workload | None = None) -> None:
        """Stores the job's present state. `workload` is its `WorkloadKeys.runs`, if known."""
        uid = job.metadata.uid
        self.drop(uid)
        workload = workload or workload_keys(job).runs
        self.jobs[uid], self._workloads[uid] = job, workload
        run = _run_of(job)
        if run is not None:
            known = self._runs[uid] = _KnownRun(run, workload, _family_of(job))
            self._history.add(workload, run)
            self._history.add(known.family, run)
            self._runs_changed(known)

    def drop(self, uid: str) -> None:
        self.version += 1
        self._ends.pop(uid, None)
        self._remaining.pop(uid, None)
        self.jobs.pop(uid, None)
        self._families.pop(uid, None)
        self._workloads.pop(uid, None)
        known = self._runs.pop(uid, None)
        if known is not None:
            self._history.remove(known.workload, known.run)
            self._history.remove(known.family, known.run)
            self._runs_changed(known)

    def _runs_changed(self, known: _KnownRun) -> None:
        self._lengths.clear()
        self._changed |= {known.workload, known.family}

    def take_changed(self, uids: Iterable[str], relevant_from_seconds: float = 0.0) -> list[str]:
        """Returns the jobs whose `expected_first_run_seconds` may have changed since the last call.

        A change that stays below the given bound is left out. Each call must pass every job whose
        expectation is stored somewhere.
        """
        changed = {one for one in self._changed if self._is_relevant(one, relevant_from_seconds)}
        self._changed.clear()
        if not changed:
            return []
        workloads, families = self._workloads, self._families
        return [
            uid for uid in uids if workloads.get(uid) in changed or families.get(uid) in changed
        ]

    def _is_relevant(self, runs: Workload | Family, from_seconds: float) -> bool:
        """Returns whether the changed runs affect an expectation that reaches the bound.

        A run is expected to be shorter on more GPUs. Without runs, the family's runs may be used
        instead.
        """
        before, after = self._taken.pop(runs, None), self._history.expected_seconds(runs, 1)
        if after is not None:
            self._taken[runs] = after
        if before is None or after is None:
            return before is not after
        # An expectation close to the bound counts, because expectations are rounded.
        return before != after and 1.1 * max(before, after) >= from_seconds

    def released_at(self, uid: str) -> float:
        """Returns when this job releases its GPUs, as a Unix time in seconds, possibly in the past.

        Infinite if unknown.
        """
        end = self.end(uid)
        length = 0.0 if end.run_class is None else self.length(end.run_class)
        return end.released_at(length, self.now_seconds)

    def seconds(self, uid: str) -> float:
        """Returns the same in seconds from now."""
        return max(self.released_at(uid) - self.now_seconds, 0.0)

    def stopping(self, uid: str) -> bool:
        job = self.jobs.get(uid)
        return job is not None and job.status.phase is JobPhase.STOPPING

    def expected_run_seconds(self, job: GPUJob) -> float:
        """Returns how long a pending job will run, without the time of its earlier attempts."""
        uid = job.metadata.uid
        if self.jobs.get(uid) is not job:
            left = self._remaining_of(job)
        elif (left := self._remaining.get(uid)) is None:
            left = self._remaining[uid] = self._remaining_of(job)
        return self.length(left) if isinstance(left, tuple) else left

    def _remaining_of(self, job: GPUJob) -> float | RunClass:
        """Returns the remaining seconds by the job's own pace, or else the class of
        similar runs.
        """
        left = remaining_of(job, self.configuration)
        if left is not None:
            return left
        workload = self._workloads.get(job.metadata.uid)
        return workload or workload_keys(job).runs, job.spec.gpus

    def expected_first_run_seconds(self, job: GPUJob) -> float | None:
        """Returns how long a job will run that has not run yet, or None if that is unknown.

        Runs of its workload decide, or else runs of its family.
        """
        uid = job.metadata.uid
        found = self.length((self._workloads[uid], job.spec.gpus))
        if found == inf:
            family = self._families[uid] = _family_of(job)
            found = self.length((family, job.spec.gpus))
        return found if found < inf else None

    def end(self, uid: str) -> ReleaseTime:
        """Returns the release time as far as the job alone determines it. See `released_at`."""
        end, job = self._ends.get(uid), self.jobs.get(uid)
        if job is None:
            return UNKNOWN
        if end is None:
            end = self._ends[uid] = self._end_of(job)
        return end

    def _end_of(self, job: GPUJob) -> ReleaseTime:
        status, stop, until = job.status, job.status.stop, awaited_until(job)
        if stop is not None and until is not None:
            return ReleaseTime(stop.deadline.timestamp(), unknown_from=until.timestamp())
        left = remaining_of(job, self.configuration)
        if left is not None and status.observed_at is not None:
            return ReleaseTime(status.observed_at.timestamp() + left)
        if status.attempt_started_at is None:
            return UNKNOWN
        workload = self._workloads[job.metadata.uid]
        return ReleaseTime(status.attempt_started_at.timestamp(), (workload, job.spec.gpus))

    def length(self, run_class: RunClass) -> float:
        """Returns the expected duration of such runs in seconds. Infinite if unknown."""
        length = self._lengths.get(run_class)
        if length is None:
            expected = self._history.expected_seconds(*run_class)
            # The estimate is no more precise than two digits.
            length = inf if expected is None else float(f"{expected:.2g}")
            self._lengths[run_class] = length
        return length


def _run_of(job: GPUJob) -> Run | None:
    """Returns the run of a succeeded job, or None."""
    status = job.status
    if status.phase is not JobPhase.SUCCEEDED:
        return None
    if status.finished_at is None or status.started_at is None:
        return None
    seconds = status.held_seconds
    if seconds is None:
        seconds = max((status.finished_at - status.started_at).total_seconds(), 0.0)
    return Run(status.finished_at.timestamp(), job.metadata.uid, seconds * job.spec.gpus)


def _family_of(job: GPUJob) -> Family:
    return job.metadata.namespace, program_of(job.spec)
