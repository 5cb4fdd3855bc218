"""Progress of simulated attempts: at the measured pace, until the end that `plan` expects."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf, isfinite

from gpujob_api.gpujob import GPUJob
from gpujob_api.report import CheckpointReport, Report, WorkerPhase
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds
from gpujob_operator.decide.model.protection import durable_checkpoint
from gpujob_operator.decide.model.snapshot import ReceivedReport


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """A running attempt: its start, its first step, and its expected end (None: unknown)."""

    attempt: int
    since: datetime
    step: int
    step_seconds: float | None
    ends_at: datetime | None

    def step_at(self, now: datetime) -> int:
        if self.step_seconds is None or now <= self.since:
            return self.step
        return self.step + int((now - self.since).total_seconds() / self.step_seconds)


def pace_now(job: GPUJob, releases: ReleaseTimes, now: datetime) -> AttemptProgress:
    """Returns the progress of an attempt that is running when the simulation starts."""
    measured = job.status.measurement
    at = job.status.observed_at or now
    step = measured.step if measured is not None else 0
    ends_at = in_seconds(now, releases.seconds(job.metadata.uid))
    return AttemptProgress(job.status.attempt, min(at, now), step, _step_seconds(job), ends_at)


def pace_from_start(
    job: GPUJob, releases: ReleaseTimes, configuration: Configuration, now: datetime
) -> AttemptProgress:
    """Returns the progress of an attempt whose pods start now.

    A resumed attempt takes the restart time first.
    """
    saved = durable_checkpoint(job, configuration)
    step = saved.step if saved is not None else 0
    restart = configuration.restart_seconds if job.status.attempt > 1 else 0.0
    seconds = releases.expected_run_seconds(_from_step(job, step)) + restart
    since = now + timedelta(seconds=restart)
    return AttemptProgress(
        job.status.attempt, since, step, _step_seconds(job), in_seconds(now, seconds)
    )


def report_of(job: GPUJob, pace: AttemptProgress, now: datetime) -> ReceivedReport:
    """Returns the report of rank 0 at this time.

    Without a new step, or without a step count, it reports another phase, so that the job does not
    count as hung.
    """
    measured = job.status.measurement
    counted = measured is not None and measured.current is not None
    step = _bounded_step(job, pace, now)
    moved = measured is not None and step != measured.step
    busy = WorkerPhase.EVALUATING if counted else WorkerPhase.TUNING
    report = Report(
        attempt=pace.attempt,
        phase=WorkerPhase.TRAINING if counted and moved else busy,
        step=step,
        steps_total=measured.steps_total if measured is not None else None,
        current=measured.current if measured is not None else None,
    )
    return ReceivedReport(job.metadata.uid, 0, now, report)


def final_report(
    job: GPUJob, pace: AttemptProgress | None, configuration: Configuration, now: datetime
) -> tuple[int, Report | None]:
    """Returns exit code and last report of a worker that used its grace.

    It saves if its last checkpoint took no longer than the grace, as in `preemption.cost`.
    """
    saved = durable_checkpoint(job, configuration)
    in_time = saved is not None and saved.write_seconds <= grace_seconds(job, configuration)
    if saved is None or pace is None or not in_time:
        return EXIT_INTERRUPTED_UNSAVED, None
    report = report_of(job, pace, now).report
    step = max(report.step, saved.step)
    kept = CheckpointReport(step, saved.bytes, saved.write_seconds)
    return EXIT_INTERRUPTED_SAVED, replace(report, phase=WorkerPhase.FINISHED, checkpoint=kept)


def _bounded_step(job: GPUJob, pace: AttemptProgress, now: datetime) -> int:
    measured = job.status.measurement
    total = measured.steps_total if measured is not None else None
    step = pace.step_at(now)
    return step if total is None else min(step, total)


def _from_step(job: GPUJob, step: int) -> GPUJob:
    """Returns the job as measured, with this many steps completed."""
    measured = job.status.measurement
    if measured is None:
        return job
    measurement = replace(measured, step=step)
    return replace(job, status=replace(job.status, measurement=measurement))


def _step_seconds(job: GPUJob) -> float | None:
    measured = job.status.measurement
    timing = measured.current if measured is not None else None
    return timing.step_seconds if timing is not None and timing.step_seconds > 0 else None


def in_seconds(now: datetime, seconds: float | None) -> datetime | None:
    """Returns the time, or None if it is more than a thousand years away."""
    if seconds is None:
        return None
    within = seconds < inf and isfinite(seconds) and seconds < 3e10
    return now + timedelta(seconds=max(seconds, 0.0)) if within else None
