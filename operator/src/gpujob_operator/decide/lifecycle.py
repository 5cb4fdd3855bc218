"""One job's life: from what is seen of its attempt to its next status and pod actions.

    Pending --placed--> Starting --all run--> Running --all 0--> Succeeded
       ^                   |                     |
       |                   +------ stop ---------+---> Stopping
       +--- retried or interrupted, proven finished ---+      |
                                                       +------+--> Failed

The placement is durable in `status` before a pod exists, and an attempt's cards stay reserved until
every one of its pods is finished or gone.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, StopReason
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.report import FailureClass, Report
from gpujob_operator.decide import conditions
from gpujob_operator.decide.conditions import ConditionWriter
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.outcome import (
    FOR_OTHERS,
    End,
    Outcome,
    Verdict,
    interrupted,
    judge,
    verdict,
)
from gpujob_operator.decide.plan import CreatePod, DeletePod, EventNote, EventType
from gpujob_operator.decide.progress import (
    is_hung,
    joined_usage,
    with_measured_reservation,
    with_measurement,
    with_report,
)
from gpujob_operator.decide.snapshot import CardUsage, PodPhase, PodView, ReceivedReport
from gpujob_operator.decide.tuning import settings_for

# Finished pods of this many attempts are kept for their logs.
ATTEMPTS_KEPT = 3
# A worker that does not report is at work while it uses its card at least this much.
BUSY_PERCENT_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the snapshot shows of one job."""

    pods: tuple[PodView, ...] = ()
    report: ReceivedReport | None = None
    usage: CardUsage | None = None
    profile: GPUProfile | None = None
    # Why the attempt must leave its cards, found by `trouble.find`, or None.
    trouble: StopReason | None = None
    # Those of the attempt's nodes that are there no more.
    lost_nodes: frozenset[str] = frozenset()
    listening_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The job's next status and what goes with it."""

    status: GPUJobStatus
    events: tuple[EventNote, ...] = ()
    creates: tuple[CreatePod, ...] = ()
    deletes: tuple[DeletePod, ...] = ()
    next_seconds: float | None = field(default=None)


def advance(job: GPUJob, seen: Seen, configuration: Configuration, now: datetime) -> Step:
    """The next step of a job that is not waiting for a place."""
    strays = _strays(job, seen.pods, configuration)
    if job.finished or job.metadata.deletion_timestamp is not None:
        return Step(job.status, deletes=strays)
    if job.status.placement is None:
        return Step(job.status, deletes=strays)
    step = _advance_placed(job, seen, configuration, now)
    return replace(step, deletes=(*strays, *step.deletes)) if strays else step


def stopped_for(job: GPUJob, step: Step, stop: StopReason, now: datetime) -> Step:
    """The step of a running job once another job's sake ends its attempt.

    Pods that this step would have created are not; what it learned stays.
    """
    running = replace(job, status=step.status)
    stopping = _stop(running, stop, job.spec.workers, now)
    return replace(stopping, deletes=step.deletes, events=(*step.events, *stopping.events))


def current_pods(job: GPUJob, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
    return tuple(pod for pod in pods if pod.attempt == job.status.attempt)


def _strays(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> tuple[DeletePod, ...]:
    """Live pods that no attempt of the job owns any more, and finished ones nobody will read."""
    waiting = job.status.placement is None or job.finished
    # Pods of a later attempt than the status knows mean that our view of the job is old.
    known = tuple(pod for pod in pods if pod.attempt <= job.status.attempt)
    found: list[DeletePod] = []
    for pod in known:
        old = pod.attempt < job.status.attempt
        stray = not pod.finished and (old or waiting)
        stale = pod.finished and pod.attempt <= job.status.attempt - ATTEMPTS_KEPT
        if (stray or stale) and pod.deletion_at is None:
            reason = "not part of the current attempt" if stray else "logs of an old attempt"
            found.append(DeletePod(pod, configuration.termination_grace_seconds, reason))
    return tuple(found)


def _advance_placed(job: GPUJob, seen: Seen, configuration: Configuration, now: datetime) -> Step:
    pods = current_pods(job, seen.pods)
    live = tuple(pod for pod in pods if not pod.finished)
    never_started = job.status.phase is JobPhase.STARTING and not pods
    if not live and not never_started and not _missing_can_be_created(job, pods):
        return _end(job, seen, pods, configuration, now)
    if job.status.phase is JobPhase.STOPPING:
        return _stopping(job, seen, live, configuration, now)
    stop = _reason_to_stop(job, pods, seen, configuration, now)
    if stop is not None:
        return _stop(job, stop, len(live), now)
    if job.status.phase is JobPhase.STARTING:
        return _starting(job, seen, pods, configuration, now)
    return _running(job, seen, configuration, now)


def _missing_can_be_created(job: GPUJob, pods: tuple[PodView, ...]) -> bool:
    """Still starting, and no pod has ended badly: the missing ones are yet to be created."""
    starting = job.status.phase is JobPhase.STARTING
    return starting and len(pods) < job.spec.workers and not any(pod.finished for pod in pods)


def _starting(
    job: GPUJob,
    seen: Seen,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> Step:
    present = {pod.rank for pod in pods}
    placement = job.status.placement
    # A rank without a place (somebody edited the status) never gets a pod; the attempt then ends
    # for want of workers.
    placed = sorted(worker.rank for worker in placement.workers) if placement is not None else []
    missing = [rank for rank in placed if rank not in present]
    settings = settings_for(job, seen.profile)
    creates = tuple(CreatePod(job, rank, settings) for rank in missing)
    writer = ConditionWriter(job, now)
    if not missing and all(pod.phase is not PodPhase.PENDING for pod in pods):
        status = changed(
            job.status,
            phase=JobPhase.RUNNING,
            started_at=job.status.started_at or now,
            progressed_at=now,
        )
        status = writer.set(status, conditions.RUNNING, True, "WorkersRunning", _ranks(pods))
        note = EventNote("Started", f"attempt {status.attempt}: {_ranks(pods)}")
        return Step(status, events=(note,))
    reason, message = _waiting(pods, len(missing))
    status = writer.set(job.status, conditions.RUNNING, False, reason, message)
    left = configuration.start_timeout_seconds - _age_seconds(job, now)
    return Step(status, creates=creates, next_seconds=max(left, 1.0))


def _waiting(pods: tuple[PodView, ...], missing: int) -> tuple[str, str]:
    for pod in pods:
        if pod.phase is PodPhase.PENDING and pod.reason:
            return pod.reason, f"pod {pod.name}: {pod.message or pod.reason}"
    return "Starting", f"{len(pods)} pods created, {missing} to create"


def _running(job: GPUJob, seen: Seen, configuration: Configuration, now: datetime) -> Step:
    report: Report | None = seen.report.report if seen.report is not None else None
    status = with_report(job.status, seen.report)
    usage = joined_usage(seen.usage, report)
    status = with_measurement(status, report, usage)
    status, events = with_measured_reservation(job, status, report, usage, configuration)
    if status.resumed_from_step is not None and job.status.resumed_from_step is None:
        text = f"attempt {status.attempt} continues after step {status.resumed_from_step}"
        events = (*events, EventNote("Resumed", text))
    since = status.progressed_at or now
    left = job.spec.retry.hang_timeout_seconds - (now - since).total_seconds()
    return Step(status, events=events, next_seconds=max(left, 1.0))


def _reason_to_stop(
    job: GPUJob,
    pods: tuple[PodView, ...],
    seen: Seen,
    configuration: Configuration,
    now: datetime,
) -> StopReason | None:
    grace = timedelta(seconds=configuration.termination_grace_seconds)
    if job.spec.suspend:
        return StopReason("Suspended", "spec.suspend is true", now + grace)
    if any(pod.finished and pod.exit_code != 0 for pod in pods):
        names = ", ".join(pod.name for pod in pods if pod.finished and pod.exit_code != 0)
        return StopReason("WorkerEnded", f"{names} ended, the others cannot go on", now + grace)
    if job.status.phase is JobPhase.RUNNING and len(pods) < job.spec.workers:
        message = f"{len(pods)} of {job.spec.workers} workers are left"
        return StopReason("WorkerLost", message, now + grace)
    if seen.trouble is not None:
        return seen.trouble
    return _timed_out(job, seen, configuration, now)


def _timed_out(
    job: GPUJob, seen: Seen, configuration: Configuration, now: datetime
) -> StopReason | None:
    grace = timedelta(seconds=configuration.termination_grace_seconds)
    if job.status.phase is JobPhase.STARTING:
        if _age_seconds(job, now) <= configuration.start_timeout_seconds:
            return None
        limit = configuration.start_timeout_seconds
        running = conditions.find(job.status, conditions.RUNNING)
        detail = f": {running.message}" if running is not None else ""
        return StopReason(
            "StartTimeout", f"did not start within {limit:.0f} s{detail}", now + grace
        )
    limit_seconds = job.spec.retry.hang_timeout_seconds
    if _works_silently(job, seen):
        return None
    # The status is written now and then; the last report may be newer.
    status = with_report(job.status, seen.report)
    idle_seconds = is_hung(status, limit_seconds, now, seen.listening_since)
    if idle_seconds is None:
        return None
    message = f"no progress for {idle_seconds:.0f} s (retry.hangTimeoutSeconds is {limit_seconds})"
    return StopReason("Hung", message, now + grace)


def _works_silently(job: GPUJob, seen: Seen) -> bool:
    """A worker of another framework reports nothing; that its card is busy is sign enough."""
    measurement = job.status.measurement
    spoke = measurement is not None and measurement.current is not None
    speaks = seen.report is not None and seen.report.report.attempt == job.status.attempt
    busy = seen.usage is not None and seen.usage.utilization_percent >= BUSY_PERCENT_MIN
    return busy and not (spoke or speaks)


def _stop(job: GPUJob, stop: StopReason, live: int, now: datetime) -> Step:
    """First the decision is made durable; the pods are stopped from the next cycle on."""
    status = changed(job.status, phase=JobPhase.STOPPING, stop=stop)
    writer = ConditionWriter(job, now)
    status = writer.set(status, conditions.RUNNING, False, stop.reason, stop.message)
    left = (stop.deadline - now).total_seconds()
    text = f"attempt {status.attempt}, {live} workers, {left:.0f} s of grace: {stop.message}"
    note = EventNote(f"Stopping{stop.reason}", text, EventType.WARNING)
    return Step(status, events=(note,), next_seconds=0.0)


def _stopping(
    job: GPUJob,
    seen: Seen,
    live: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> Step:
    """SIGTERM and grace for every live pod.

    The workers of a gang are first asked through the reply to their reports, so that they agree on
    a step; after half of the grace, or without reports, their pods are deleted.
    """
    stop = job.status.stop
    deadline = stop.deadline if stop is not None else now
    left = max((deadline - now).total_seconds(), 0.0)
    half = configuration.termination_grace_seconds / 2
    asked = job.spec.workers > 1 and seen.report is not None and left > half
    grace = max(int(left), 1)
    deletes = tuple(
        DeletePod(pod, grace, stop.reason if stop is not None else "Stopping")
        for pod in live
        if pod.deletion_at is None and not asked
    )
    status = with_report(job.status, seen.report)
    return Step(status, deletes=deletes, next_seconds=max(left - half, 1.0) if asked else None)


def _end(
    job: GPUJob,
    seen: Seen,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> Step:
    """The attempt is proven finished: its cards are free from this write on."""
    job = replace(job, status=_with_last_words(job, seen, pods, now))
    outcome = judge(job, pods, seen.lost_nodes)
    if outcome.end is End.SUCCEEDED:
        return _succeeded(job, now)
    if outcome.end is End.INTERRUPTED:
        return _again(job, outcome, interrupted(job, outcome, configuration, now), now)
    return _again(job, outcome, verdict(job, outcome, configuration, now), now)


def _with_last_words(
    job: GPUJob, seen: Seen, pods: tuple[PodView, ...], now: datetime
) -> GPUJobStatus:
    """The termination message is the last report; nothing depends on the network at the end."""
    words = [pod for pod in pods if pod.termination is not None and pod.rank == 0]
    received = seen.report
    if words and words[0].termination is not None:
        at = words[0].finished_at or now
        received = ReceivedReport(job.metadata.uid, 0, at, words[0].termination)
    status = with_report(job.status, received)
    report = received.report if received is not None else None
    return with_measurement(status, report, joined_usage(seen.usage, report))


def _succeeded(job: GPUJob, now: datetime) -> Step:
    writer = ConditionWriter(job, now)
    started = job.status.started_at or now
    seconds = (now - started).total_seconds()
    text = (
        f"finished after {seconds:.0f} s, {job.status.attempt} attempts, "
        f"{job.status.counters.interruptions} interruptions"
    )
    status = changed(
        job.status, phase=JobPhase.SUCCEEDED, finished_at=now, stop=None, next_attempt_at=None
    )
    status = writer.set(status, conditions.RUNNING, False, "Finished", text)
    status = writer.set(status, conditions.SUCCEEDED, True, "Completed", text)
    return Step(status, events=(EventNote("Succeeded", text),))


def _again(job: GPUJob, outcome: Outcome, decision: Verdict, now: datetime) -> Step:
    writer = ConditionWriter(job, now)
    cause = outcome.failure.message if outcome.failure else _why_interrupted(job, outcome)
    kind = outcome.failure.failure_class.value if outcome.failure else _kind_of(outcome)
    text = f"attempt {job.status.attempt}: {cause}; {decision.message}"
    status = changed(
        job.status,
        counters=decision.counters,
        failure=outcome.failure,
        stop=None,
        next_attempt_at=decision.next_attempt_at,
    )
    status = writer.set(status, conditions.RUNNING, False, kind, text)
    if not decision.retry:
        status = changed(status, phase=JobPhase.FAILED, finished_at=now)
        status = writer.set(status, conditions.SUCCEEDED, False, kind, text)
        return Step(status, events=(EventNote("Failed", text, EventType.WARNING),))
    made_room = job.status.stop is not None and job.status.stop.reason in FOR_OTHERS
    status = changed(
        status,
        phase=JobPhase.PENDING,
        # Behind those that were there already: else it would take back what it gave.
        requeued_at=now if made_room else status.requeued_at,
        placement=None,
        reservation=None,
        attempt_started_at=None,
        progressed_at=None,
        resumed_from_step=None,
    )
    status = writer.set(status, conditions.SCHEDULED, False, "WaitingForRetry", text)
    return Step(status, events=(EventNote(f"Attempt{kind}", text, EventType.WARNING),))


def _kind_of(interruption: Outcome) -> str:
    return FailureClass.NODE_LOST.value if interruption.lost_node else "Interrupted"


def _why_interrupted(job: GPUJob, outcome: Outcome) -> str:
    stop = job.status.stop
    what = stop.message if stop else "its pods are gone"
    if outcome.lost_node:
        what = f"its node {outcome.lost_node} went away"
    saved = job.status.checkpoint
    step = f", checkpoint of step {saved.step} is kept" if saved is not None else ", no checkpoint"
    return f"interrupted ({what}){step}"


def _age_seconds(job: GPUJob, now: datetime) -> float:
    started = job.status.attempt_started_at or now
    return (now - started).total_seconds()


def _ranks(pods: tuple[PodView, ...]) -> str:
    where = sorted({pod.node or "?" for pod in pods})
    return f"{len(pods)} workers on {', '.join(where)}"
