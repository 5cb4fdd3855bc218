"""Why an attempt is stopped before it has ended, as far as the job itself tells."""

from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_operator.decide import conditions
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.grace import stop_seconds
from gpujob_operator.decide.progress import is_hung, with_report
from gpujob_operator.decide.seen import Seen
from gpujob_operator.decide.snapshot import PodView
from gpujob_operator.decide.workers import lost_ranks, perhaps_workers

# A worker that does not report is at work while it uses its card at least this much.
BUSY_PERCENT_MIN = 1.0


def reason_to_stop(
    job: GPUJob,
    pods: tuple[PodView, ...],
    seen: Seen,
    configuration: Configuration,
    now: datetime,
) -> StopReason | None:
    """The first reason to end an attempt of which these are the pods, or None."""
    deadline = now + timedelta(seconds=stop_seconds(job, configuration))
    if job.spec.suspend:
        return StopReason("Suspended", "spec.suspend is true", deadline)
    failed = [pod.name for pod in pods if pod.ended and pod.exit_code != 0]
    if failed:
        names = ", ".join(failed)
        return StopReason("WorkerEnded", f"{names} ended, the others cannot go on", deadline)
    present = len({pod.rank for pod in pods})
    is_short = job.status.phase is JobPhase.RUNNING and present < job.spec.workers
    if is_short or lost_ranks(job, pods):
        message = f"{present} of {job.spec.workers} workers are left"
        return StopReason("WorkerLost", message, deadline)
    if seen.trouble is not None:
        return seen.trouble
    return _timed_out(job, seen, configuration, now)


def age_seconds(job: GPUJob, now: datetime) -> float:
    """Of the attempt."""
    started = job.status.attempt_started_at or now
    return (now - started).total_seconds()


def _timed_out(
    job: GPUJob, seen: Seen, configuration: Configuration, now: datetime
) -> StopReason | None:
    deadline = now + timedelta(seconds=stop_seconds(job, configuration))
    if job.status.phase is JobPhase.STARTING:
        if perhaps_workers(job, seen.in_the_way):
            # The attempt could not end.
            return None
        if age_seconds(job, now) <= configuration.start_timeout_seconds:
            return None
        limit = configuration.start_timeout_seconds
        running = conditions.find(job.status, conditions.RUNNING)
        detail = f": {running.message}" if running is not None else ""
        return StopReason("StartTimeout", f"did not start within {limit:.0f} s{detail}", deadline)
    limit_seconds = job.spec.retry.hang_timeout_seconds
    if _works_silently(job, seen):
        return None
    # The status is written now and then; the last report may be newer.
    status = with_report(job.status, seen.report)
    idle_seconds = is_hung(status, limit_seconds, now, seen.listening_since)
    if idle_seconds is None:
        return None
    message = f"no progress for {idle_seconds:.0f} s (retry.hangTimeoutSeconds is {limit_seconds})"
    return StopReason("Hung", message, deadline)


def _works_silently(job: GPUJob, seen: Seen) -> bool:
    """A worker of another framework reports nothing; that its card is busy is sign enough."""
    measurement = job.status.measurement
    spoke = measurement is not None and measurement.current is not None
    speaks = seen.report is not None and seen.report.report.attempt == job.status.attempt
    busy = seen.usage is not None and seen.usage.utilization_percent >= BUSY_PERCENT_MIN
    return busy and not (spoke or speaks)
