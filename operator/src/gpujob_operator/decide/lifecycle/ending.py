"""The step of an attempt whose workers have all ended or are gone.

It succeeded, is tried again, or failed.
"""

from dataclasses import replace
from datetime import datetime

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.quantities import format_count
from gpujob_api.report import FailureClass
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED
from gpujob_api.start_refusal import OthersStopped
from gpujob_operator.decide.lifecycle import untuned
from gpujob_operator.decide.lifecycle.cost import cost_so_far
from gpujob_operator.decide.lifecycle.done import circumstances_of
from gpujob_operator.decide.lifecycle.faults import without_gpus_faults
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.out_of_memory import without_others_faults
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome, judge
from gpujob_operator.decide.lifecycle.repeated import with_last_error
from gpujob_operator.decide.lifecycle.retry import RetryDecision, interrupted, retry_decision
from gpujob_operator.decide.lifecycle.start_refusals import START_ERRORS, age_seconds, with_refusal
from gpujob_operator.decide.measurement.milestones import after_an_interruption, refusal
from gpujob_operator.decide.measurement.progress import joined_usage, with_measurement, with_report
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import EventNote, EventType, NextStep
from gpujob_operator.decide.model.snapshot import PodView, ReceivedReport
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.model.waiting_time import later


def end_attempt(
    job: GPUJob,
    inputs: JobInputs,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> NextStep:
    """Ends the attempt, because all workers have ended or are gone.

    Its reservation ends, except on GPUs of pods in which other containers still run (see
    `capacity.usage`).
    """
    seconds = max(age_seconds(job, now), 0.0)
    held = (job.status.held_seconds or 0.0) + seconds
    received = _final_report(job, inputs, pods, now)
    before = job.status
    ended = changed(
        _with_report(job, inputs, received, configuration),
        started_at=job.status.started_at or _workers_started_at(pods, now),
        held_seconds=round(held, 1),
        cost=cost_so_far(job, inputs.sites, configuration, seconds),
    )
    job = replace(job, status=ended)
    around = circumstances_of(job, inputs, now)
    judged = judge(job, pods, inputs.lost_nodes, around)
    access = configuration.device_access
    outcome = without_others_faults(job, judged, pods, inputs.sites, access)
    outcome = without_gpus_faults(job, outcome, inputs.sites)
    if outcome.refusal is not None:
        job = replace(job, status=with_refusal(job, outcome.refusal, configuration, now))
    if outcome.end is AttemptEnd.SUCCEEDED:
        step = _succeeded(job, received, now)
    else:
        decide = interrupted if outcome.end is AttemptEnd.INTERRUPTED else retry_decision
        decision = decide(job, outcome, configuration, now)
        drained = _is_drained(pods, received)
        step = _retry_or_fail(job, outcome, decision, configuration, now, is_drained=drained)
    refused = refusal(before, ended, received.report if received is not None else None)
    return replace(step, events=(*refused, *step.events)) if refused else step


def _workers_started_at(pods: tuple[PodView, ...], now: datetime) -> datetime | None:
    """Returns when all workers of an attempt ran that ended before it was seen running; None if a
    worker never ran.

    It is the kubelet's time, between the creation of the pod and the present.
    """
    times = [
        max(pod.started_at, pod.created_at or pod.started_at)
        for pod in pods
        if pod.started_at is not None and pod.reason not in START_ERRORS
    ]
    return min(max(times), now) if times and len(times) == len(pods) else None


def _final_report(
    job: GPUJob, inputs: JobInputs, pods: tuple[PodView, ...], now: datetime
) -> ReceivedReport | None:
    """Returns the last report.

    It is the termination message if there is one, so that the end does not depend on the network.
    """
    words = [pod for pod in pods if pod.termination is not None and pod.rank == 0]
    if words and words[0].termination is not None:
        at = words[0].finished_at or now
        return ReceivedReport(job.metadata.uid, 0, at, words[0].termination)
    return inputs.report


def _with_report(
    job: GPUJob, inputs: JobInputs, received: ReceivedReport | None, configuration: Configuration
) -> GPUJobStatus:
    status = with_report(job, job.status, received, configuration)
    report = received.report if received is not None else None
    return with_measurement(
        status, report, joined_usage(inputs.usage, report, job.status.reservation)
    )


def _succeeded(job: GPUJob, received: ReceivedReport | None, now: datetime) -> NextStep:
    started = job.status.started_at or now
    seconds = (now - started).total_seconds()
    text = (
        f"finished after {seconds:.0f} s, {format_count(job.status.attempt, 'attempt')}, "
        f"{format_count(job.status.counters.interruptions, 'interruption')}"
    )
    writer = ConditionWriter(job, job.status, now)
    # The text is stored only once, because ten thousand finished jobs are stored and listed with
    # it.
    writer.set(conditions.RUNNING, False, "Finished")
    writer.set(conditions.SUCCEEDED, True, "Completed", text)
    writer.set(conditions.FINISHED, True, "Succeeded")
    untuned.at_the_end(job, job.status, received, writer)
    status = writer.status(
        phase=JobPhase.SUCCEEDED,
        finished_at=now,
        stop=None,
        next_attempt_at=None,
        progressed_at=None,
    )
    return NextStep(status, events=(EventNote("Succeeded", text),))


def _is_drained(pods: tuple[PodView, ...], received: ReceivedReport | None) -> bool:
    """Returns whether a server answered all requests that it had accepted.

    The exit code alone is also that of a process without our worker which SIGTERM ends.
    """
    serves = received is not None and received.report.serving is not None
    return serves and bool(pods) and all(pod.exit_code == EXIT_INTERRUPTED_SAVED for pod in pods)


def _retry_or_fail(
    job: GPUJob,
    outcome: Outcome,
    decision: RetryDecision,
    configuration: Configuration,
    now: datetime,
    *,
    is_drained: bool,
) -> NextStep:
    if outcome.failure is not None:
        cause = outcome.failure.message
    else:
        after = after_an_interruption(job, configuration, is_drained=is_drained)
        cause = _why_interrupted(job, outcome, decision, after)
    kind = outcome.failure.failure_class.value if outcome.failure else _kind_of(job, outcome)
    text = f"attempt {job.status.attempt}: {cause}; {decision.message}"
    status = changed(
        job.status,
        counters=decision.counters,
        others_stopped=_others_stopped(job, outcome),
        failure=outcome.failure,
        out_of_memory_step=_out_of_memory_step(job.status, outcome),
        interrupted_at_step=_interrupted_at_step(job.status, outcome),
        stop=None,
        next_attempt_at=decision.next_attempt_at,
    )
    status = with_last_error(status, outcome)
    writer = ConditionWriter(job, status, now)
    if not decision.retry:
        writer.set(conditions.RUNNING, False, kind)
        writer.set(conditions.SUCCEEDED, False, kind, text)
        writer.set(conditions.FAILED, True, kind, text)
        writer.set(conditions.FINISHED, True, "Failed")
        status = writer.status(phase=JobPhase.FAILED, finished_at=now, progressed_at=None)
        return NextStep(status, events=(EventNote("Failed", text, EventType.WARNING),))
    writer.set(conditions.RUNNING, False, kind, text)
    writer.set(conditions.SCHEDULED, False, "BackingOff", text)
    status = writer.status(
        phase=JobPhase.PENDING,
        requeued_at=_requeued_at(job, outcome, now),
        placement=None,
        reservation=None,
        attempt_started_at=None,
        progressed_at=None,
        resumed_from_step=None,
    )
    asked_for = outcome.failure is None and rule_of(job.status.stop).asked_for
    event_type = EventType.NORMAL if asked_for else EventType.WARNING
    return NextStep(status, events=(EventNote(f"Attempt{kind}", text, event_type),))


def _requeued_at(job: GPUJob, outcome: Outcome, now: datetime) -> datetime | None:
    """Returns the time from which the job waits.

    A preempted job waits behind the jobs that were already pending, because otherwise it would
    regain what it gave up. The time of an attempt whose pods were refused does not count as
    waiting.
    """
    status, rule = job.status, rule_of(job.status.stop)
    if rule.for_others:
        return now
    refused = rule.is_refusal or outcome.refusal is not None
    if not refused or status.attempt_started_at is None:
        return status.requeued_at
    wait = now - status.attempt_started_at
    return later(job, wait).get("requeued_at", status.requeued_at)


def _out_of_memory_step(status: GPUJobStatus, outcome: Outcome) -> int | None:
    """Returns the furthest step at which an attempt ran out of GPU memory, including this one."""
    failure, before = outcome.failure, status.out_of_memory_step
    if failure is None or failure.failure_class is not FailureClass.OUT_OF_MEMORY:
        return before
    reached = status.measurement.step if status.measurement is not None else 0
    return max(outcome.step, reached, before or 0)


def _interrupted_at_step(status: GPUJobStatus, outcome: Outcome) -> int | None:
    """Returns the step beyond which a durable step counts as progress from now on.

    A run that began again, because its checkpoint was lost or refused, makes progress from there.
    """
    if outcome.end is not AttemptEnd.INTERRUPTED or status.checkpoint is None:
        return status.interrupted_at_step
    if status.resumed_from_step == 0:
        return status.checkpoint.step
    return max(status.checkpoint.step, status.interrupted_at_step or 0)


def _kind_of(job: GPUJob, interruption: Outcome) -> str:
    if interruption.lost_node:
        return FailureClass.NODE_LOST.value
    if interruption.refusal is not None:
        return interruption.refusal.reason
    stop = job.status.stop
    return stop.reason if stop is not None and rule_of(stop).is_refusal else "Interrupted"


def _why_interrupted(job: GPUJob, outcome: Outcome, decision: RetryDecision, after: str) -> str:
    """Returns the cause. `after` is what follows if there is another attempt."""
    stop = job.status.stop
    what = stop.message if stop else outcome.ended_by or "the pods are gone"
    if rule_of(stop).worker_ended_first:
        what = outcome.ended_by or what
    if outcome.lost_node:
        what = f"node {outcome.lost_node} was lost"
    elif outcome.refusal is not None:
        return outcome.refusal.message
    elif rule_of(stop).is_refusal:
        return what
    if not decision.retry:
        return f"interrupted ({what})"
    return f"interrupted ({what}); {after}"


def _others_stopped(job: GPUJob, outcome: Outcome) -> OthersStopped | None:
    """Returns the record of jobs that were stopped for this one, or None to clear it.

    It is kept if the attempt's pods were refused, or if the attempt failed at its start. A first
    failure at its start may be chance and clears it.
    """
    refused = outcome.refusal is not None or rule_of(job.status.stop).is_refusal
    failed_at_start = outcome.failure is not None and not outcome.step
    counters = job.status.counters
    is_first = job.status.stop is None and not counters.errors + counters.out_of_memory
    return job.status.others_stopped if refused or (failed_at_start and not is_first) else None
