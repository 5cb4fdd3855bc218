"""When pending jobs start: the range in which most simulated futures of the cluster place them.

Each draw runs the planner forward with run times and later jobs drawn at random. The range of a job
goes from the 10 % of the draws that place it earliest to the 10 % that place it latest.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import DRAWS_MIN, JOBS_MAX, Interval, may_start
from gpujob_operator.decide.simulation.later_jobs import later_jobs
from gpujob_operator.decide.simulation.run import Future, Limits, simulate
from gpujob_operator.decide.simulation.run_lengths import PACE_SPREAD, DrawnLengths, RunLengths

DRAWS = 20
LOW, HIGH = 0.1, 0.9
HORIZON_SECONDS = 86_400.0
CYCLES_MAX = 1000
# A draw ends after so many writes, which take about half a second. Jobs that are not placed by then
# have an open end, and those that are far from their turn no range.
WRITES_MAX = 300
STEP_SECONDS = 5.0
STEP_FRACTION = 0.015
# Jobs in a simulation at most: finished ones, whose lengths are known, and pending ones.
FINISHED_MAX = 200
PENDING_MAX = 1000
_HANG_SECONDS_MAX = 604_800
# Figures of running jobs and repeated reasons decide nothing in a simulation.
_NEVER_SECONDS = 10.0 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Method:
    """How many futures are drawn, and how. The defaults are those of the operator."""

    draws: int = DRAWS
    horizon_seconds: float = HORIZON_SECONDS
    pace_spread: float = PACE_SPREAD
    expects_later_jobs: bool = True


@dataclass(frozen=True, slots=True)
class StartRanges:
    """The intervals by UID, and the number of draws. Too few draws give no intervals."""

    intervals: dict[str, Interval] = field(default_factory=dict[str, Interval])
    draws: int = 0


def start_ranges(
    snapshot: Snapshot,
    now: datetime,
    method: Method | None = None,
    may_continue: Callable[[], bool] = lambda: True,
) -> StartRanges:
    """Returns the ranges of the first `JOBS_MAX` pending jobs.

    The result depends on the snapshot, the time and the method only, as long as `may_continue`,
    which is called before each draw, returns True. A job without an interval may not start within
    the horizon, or its start depends on jobs of unknown length.
    """
    method = method or Method()
    watched = watched_jobs(snapshot.jobs)
    if not watched:
        return StartRanges()
    draws = _Draws(snapshot, now, method, watched)
    found: dict[str, list[float]] = {uid: [] for uid in watched}
    made = 0
    while made < method.draws and may_continue():
        for uid, seconds in draws.starts(made).items():
            found[uid].append(seconds)
        made += 1
    if made < DRAWS_MIN:
        return StartRanges(draws=made)
    intervals = ((uid, _interval(sorted(seconds), now)) for uid, seconds in found.items())
    return StartRanges({uid: one for uid, one in intervals if one is not None}, made)


def watched_jobs(jobs: Iterable[GPUJob]) -> list[str]:
    """Returns the UIDs of the pending jobs that get a range, by priority, then age."""
    waiting = [job for job in jobs if may_start(job, job.status)]
    return [job.metadata.uid for job in sorted(waiting, key=_order)[:JOBS_MAX]]


@dataclass(slots=True)
class _Draws:
    """The simulated futures of one snapshot."""

    snapshot: Snapshot
    now: datetime
    method: Method
    watched: list[str]
    _lengths: RunLengths = field(init=False)
    _start: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        jobs, configuration = self.snapshot.jobs, self.snapshot.configuration
        spread = self.method.pace_spread
        self._lengths = RunLengths.of(jobs, self.now, configuration, spread)
        self._start = _without_surplus(self.snapshot)

    def starts(self, draw: int) -> dict[str, float]:
        """Returns the seconds until each watched job is placed in this draw."""
        horizon_seconds = self.method.horizon_seconds
        arrivals: tuple[GPUJob, ...] = ()
        if self.method.expects_later_jobs:
            arrivals = later_jobs(self.snapshot.jobs, self.now, horizon_seconds, draw)
        lengths = DrawnLengths(self._lengths, draw, self.method.draws)
        future = Future(lengths, arrivals, frozenset(self.watched))
        limits = Limits(horizon_seconds, CYCLES_MAX, STEP_SECONDS, STEP_FRACTION, WRITES_MAX)
        jobs = simulate(self._start, self.now, limits, future=future).jobs
        starts = {uid: jobs[uid].starts_seconds for uid in self.watched}
        return {uid: inf if at is None else at for uid, at in starts.items()}


def _interval(seconds: list[float], now: datetime) -> Interval | None:
    low, high = _quantile(seconds, LOW), _quantile(seconds, HIGH)
    if low == inf:
        return None
    latest = None if high == inf else now + timedelta(seconds=high)
    return Interval.of(now + timedelta(seconds=low), latest)


def _quantile(ordered: list[float], fraction: float) -> float:
    """Returns the quantile at which the next draw would lie with this probability."""
    position = min(max(fraction * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    low = int(position)
    part = position - low
    if not part or ordered[low + 1] == inf:
        # Between a time and infinity, every number is too small.
        return ordered[low] if not part else inf
    return ordered[low] + (ordered[low + 1] - ordered[low]) * part


def _without_surplus(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot for simulations: without forecast, and with a bounded number of jobs.

    The newest finished jobs stay, because plans use their run times. Of the pending jobs, those
    stay that are first in order.
    """
    finished = [job for job in snapshot.jobs if job.finished and job.status.placement is None]
    pending = [job for job in snapshot.jobs if may_start(job, job.status)]
    newest = sorted(finished, key=_ended, reverse=True)
    left_out = {job.metadata.uid for job in newest[FINISHED_MAX:]}
    left_out |= {job.metadata.uid for job in sorted(pending, key=_order)[PENDING_MAX:]}
    jobs = tuple(_unwatched(job) for job in snapshot.jobs if job.metadata.uid not in left_out)
    configuration = replace(
        snapshot.configuration,
        progress_write_seconds=_NEVER_SECONDS,
        pending_write_seconds=_NEVER_SECONDS,
    )
    return replace(snapshot, jobs=jobs, configuration=configuration, forecast=None)


def _unwatched(job: GPUJob) -> GPUJob:
    """Returns the job with the longest hang timeout.

    Simulated jobs do not hang, and fewer reports let running jobs rest.
    """
    if job.finished:
        return job
    retry = replace(job.spec.retry, hang_timeout_seconds=_HANG_SECONDS_MAX)
    return replace(job, spec=replace(job.spec, retry=retry))


def _order(job: GPUJob) -> tuple[int, float, str]:
    created = job.metadata.creation_timestamp
    at = created.timestamp() if created is not None else inf
    return -job.spec.priority, at, job.metadata.uid


def _ended(job: GPUJob) -> tuple[float, str]:
    at = job.status.finished_at
    return at.timestamp() if at is not None else 0.0, job.metadata.uid
