"""One job's life: from the observed state of its attempt to its next status and pod actions.

    Pending --placed--> Starting --all run--> Running --all 0--> Succeeded
       ^                   |                     |
       |                   +------ stop ---------+---> Stopping
       +--- retried or interrupted, proven finished ---+      |
                                                       +------+--> Failed

The placement is durable before any process exists, either in `status` before a pod is created or on
the pod itself (`model.placement_record`). An attempt holds its GPUs until every one of its pods is
finished or gone. A worker ends with its container `worker`, whatever other containers of its pod
do.
"""

from dataclasses import replace
from datetime import datetime

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, StopReason
from gpujob_api.quantities import format_count
from gpujob_api.report import Report
from gpujob_operator.decide.capacity.sites import gpus_by_place, has_all_gpus
from gpujob_operator.decide.lifecycle import untuned
from gpujob_operator.decide.lifecycle.done import (
    circumstances_of,
    known_done,
    with_done_ranks,
)
from gpujob_operator.decide.lifecycle.ending import end_attempt
from gpujob_operator.decide.lifecycle.faults import SILENT_SECONDS, gone_gpus, seconds_until_silent
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.outcome import failure_so_far
from gpujob_operator.decide.lifecycle.pod_cleanup import abandoned_pods, delete_pod, stray_pods
from gpujob_operator.decide.lifecycle.settings import settings_for
from gpujob_operator.decide.lifecycle.start_advice import with_advice
from gpujob_operator.decide.lifecycle.start_refusals import (
    once_it_runs,
    refusal_of,
    seconds_until_used,
    start_seconds_left,
    with_refusal,
)
from gpujob_operator.decide.lifecycle.stops import reason_to_stop
from gpujob_operator.decide.measurement.milestones import first_yield, milestones
from gpujob_operator.decide.measurement.parking import is_parked, with_parked_reservation
from gpujob_operator.decide.measurement.profile import attempt_mode, with_profile_of_spec
from gpujob_operator.decide.measurement.progress import (
    hang_limit_seconds,
    joined_usage,
    with_measured_reservation,
    with_measurement,
    with_report,
)
from gpujob_operator.decide.measurement.reservation import reservable_bytes
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.grace import (
    GRACE_SECONDS_MIN,
    asked_seconds,
    grace_seconds,
    past_grace,
)
from gpujob_operator.decide.model.placement_record import (
    STARTING_MESSAGE,
    placement_message,
    record_of,
)
from gpujob_operator.decide.model.plan import CreatePod, EventNote, EventType, NextStep
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.model.workers import (
    done_ranks,
    lost_ranks,
    perhaps_created_ranks,
    perhaps_workers,
    with_pod_uids,
    with_seen_gpus,
)


def advance(
    job: GPUJob, inputs: JobInputs, configuration: Configuration, now: datetime
) -> NextStep:
    """Returns the next step of a job that is not pending."""
    if job.metadata.deletion_timestamp is not None:
        return NextStep(
            job.status, deletes=abandoned_pods(job, inputs.job_pods.pods, configuration)
        )
    strays = stray_pods(job, inputs.job_pods, configuration, now)
    if job.finished or job.status.placement is None:
        return NextStep(job.status, deletes=strays)
    step = _advance_placed(job, inputs, configuration, now)
    return replace(step, deletes=(*strays, *step.deletes)) if strays else step


def stopped_for(job: GPUJob, step: NextStep, stop: StopReason, now: datetime) -> NextStep:
    """Returns the step of a running job whose attempt is stopped for another job.

    Pods that `step` would have created are dropped. Its changes to the status are kept.
    """
    running = replace(job, status=step.status)
    stopping = _stop(running, stop, job.spec.workers, now)
    return replace(stopping, deletes=step.deletes, events=(*step.events, *stopping.events))


def _advance_placed(
    job: GPUJob, inputs: JobInputs, configuration: Configuration, now: datetime
) -> NextStep:
    pods = inputs.job_pods.current
    done = known_done(job, pods, circumstances_of(job, inputs, now))
    known = with_done_ranks(job.status, done)
    if known is not job.status:
        job = replace(job, status=known)
    # The end of the worker counts. Other containers of its pod may run until the pod is deleted.
    live = tuple(pod for pod in pods if not pod.ended)
    maybe_ours = perhaps_workers(job, inputs.job_pods.in_the_way)
    if not live and not maybe_ours and not _missing_can_be_created(job, inputs):
        return end_attempt(job, inputs, pods, configuration, now)
    if job.status.phase is JobPhase.STOPPING:
        step = _stopping(job, inputs, live, configuration, now)
        return _waits_for(job, step, maybe_ours, now) if maybe_ours and not live else step
    stop = reason_to_stop(job, pods, inputs, configuration, now)
    if stop is not None:
        if rule_of(stop).is_refusal:
            job = replace(job, status=_refused(job, inputs, pods, configuration, now))
        if rule_of(stop).worker_ended_first:
            failure = failure_so_far(job, pods)
            job = replace(job, status=changed(job.status, failure=failure))
        return _stop(job, stop, len(live), now)
    if job.status.phase is JobPhase.STARTING:
        return _starting(job, inputs, pods, configuration, now)
    return _running(job, inputs, pods, configuration, now)


def _refused(
    job: GPUJob,
    inputs: JobInputs,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> GPUJobStatus:
    """Returns the status that records why the attempt cannot start."""
    refusal = refusal_of(job, pods, inputs, configuration, now)
    if refusal is None:
        return job.status
    return with_refusal(job, refusal, configuration, now)


def _missing_can_be_created(job: GPUJob, inputs: JobInputs) -> bool:
    """Returns whether missing pods are still to be created.

    This holds while the attempt is starting and no pod has failed or is gone.
    """
    pods = inputs.job_pods.current
    starting = job.status.phase is JobPhase.STARTING
    done = done_ranks(job.status)
    short = len(done | {pod.rank for pod in pods}) < job.spec.workers
    lost = lost_ranks(job, inputs.job_pods, inputs.perhaps_created)
    failed = any(pod.ended and pod.rank not in done for pod in pods)
    return starting and short and not failed and not lost


def _starting(
    job: GPUJob,
    inputs: JobInputs,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> NextStep:
    if begins_again(job, inputs):
        return begin_again(job, now)
    present = {pod.rank for pod in pods} | done_ranks(job.status)
    taken = {pod.rank: pod for pod in inputs.job_pods.in_the_way}
    kept = {*taken, *perhaps_created_ranks(job, inputs.perhaps_created)}
    if not present and not kept:
        job = with_profile_of_spec(job)
    placement = job.status.placement
    # A rank without a placement (the status was edited by hand) never gets a pod. The attempt then
    # ends for lack of workers.
    placed = sorted(worker.rank for worker in placement.workers) if placement is not None else []
    missing = [rank for rank in placed if rank not in present]
    settings = settings_for(job, inputs.profile)
    hostnames = _hostnames(job, inputs)
    creates = tuple(
        CreatePod(job, rank, settings, hostnames.get(rank)) for rank in missing if rank not in kept
    )
    # UIDs are only written together with other changes. Until then, the process that placed the
    # attempt creates each pod once, and any other process gives the attempt another number.
    known = with_pod_uids(job.status, pods)
    if not missing and all(pod.phase is not PodPhase.PENDING for pod in pods):
        writer = ConditionWriter(job, once_it_runs(known), now)
        writer.set(conditions.RUNNING, True, "WorkersRunning", _ranks(pods))
        status = writer.status(
            phase=JobPhase.RUNNING, started_at=job.status.started_at or now, progressed_at=now
        )
        return NextStep(status)
    in_the_way = [taken[rank] for rank in missing if rank in taken]
    reason, message = _name_taken(in_the_way) if in_the_way else _waiting(pods)
    writer = ConditionWriter(job, job.status, now)
    writer.set(conditions.RUNNING, False, reason, message)
    status = writer.status()
    if status is not job.status:
        status = with_pod_uids(status, pods)
    left = start_seconds_left(job, pods, configuration, now)
    refusal = refusal_of(job, pods, inputs, configuration, now)
    if refusal is not None:
        left = max(refusal.seconds_left, 0.0)
    # After the limit, only a pod of another owner delays the attempt, and a change of that pod
    # causes a cycle.
    next_seconds = max(left, 1.0) if left >= 0 else None
    return NextStep(status, creates=creates, next_seconds=next_seconds)


def _hostnames(job: GPUJob, inputs: JobInputs) -> dict[int, str | None]:
    """Returns the workers' host names by rank, for nodes that are known."""
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    sites = zip(workers, inputs.sites, strict=False)
    return {worker.rank: site.facts.hostname for worker, site in sites if site.facts is not None}


def _waiting(pods: tuple[PodView, ...]) -> tuple[str, str]:
    for pod in pods:
        if pod.phase is PodPhase.PENDING and pod.reason:
            text = f"pod {pod.name}: {pod.message or pod.reason}"
            return pod.reason, with_advice(text, pod.reason)
    return "Starting", STARTING_MESSAGE


def _name_taken(pods: list[PodView]) -> tuple[str, str]:
    """Reports pods of other owners that have the names of the job's workers.

    The operator does not delete them.
    """
    names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods[:3])
    message = (
        f"pods that this job does not own have the names of its workers ({names}): "
        "delete the pods, and the attempt continues once they are gone"
    )
    return "PodNameTaken", message


def _waits_for(job: GPUJob, step: NextStep, pods: list[PodView], now: datetime) -> NextStep:
    """Reports a stop that cannot end yet, because these pods may belong to the attempt."""
    reason, message = _name_taken(pods)
    writer = ConditionWriter(job, step.status, now)
    writer.set(conditions.RUNNING, False, reason, message)
    return replace(step, status=writer.status())


def _running(
    job: GPUJob,
    inputs: JobInputs,
    pods: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> NextStep:
    report: Report | None = inputs.report.report if inputs.report is not None else None
    status = with_report(job, with_pod_uids(job.status, pods), inputs.report, configuration)
    if configuration.device_access is DeviceAccess.DEVICE_PLUGIN and inputs.usage is not None:
        status = with_seen_gpus(status, inputs.usage.seen)
    is_yielding = inputs.yielding is not None
    usage = joined_usage(inputs.usage, report, job.status.reservation, is_yielding=is_yielding)
    status = with_measurement(status, report, usage)

    def most_bytes() -> int:
        gpus = gpus_by_place(inputs.sites) if has_all_gpus(job, inputs.sites) else {}
        return reservable_bytes(job, gpus, inputs.promised_bytes)

    is_own = report is not None and report.attempt == status.attempt
    serving = report.serving if report is not None and is_own else None
    if is_parked(status, serving):
        status, events = with_parked_reservation(
            status, serving, inputs.usage, inputs.parks, configuration, most_bytes
        )
    else:
        status, events = with_measured_reservation(
            job, status, report, usage, configuration, most_bytes
        )
    events = (*milestones(job.status, status, report, attempt_mode(job)), *events)
    events = (*events, *first_yield(job.status, inputs.yielding))
    writer = ConditionWriter(job, status, now)
    if status.reservation != job.status.reservation:
        # The message has the reservation and its source.
        text = placement_message(job, record_of(replace(job, status=status)), status.attempt)
        writer.set(conditions.SCHEDULED, True, "Placed", text)
    untuned.while_it_runs(job, status, inputs.report, usage, configuration, writer)
    since = status.progressed_at or now
    left = hang_limit_seconds(job, inputs.report) - (now - since).total_seconds()
    if left < 0:
        # No report arrives, and the readings do not show that it hangs.
        left = SILENT_SECONDS
    if gone_gpus(job, inputs.sites):
        left = min(left, seconds_until_silent(job, inputs, now))
    unused_seconds = seconds_until_used(job.status, report, now)
    if unused_seconds:
        left = min(left, unused_seconds)
        return NextStep(writer.status(), events=events, next_seconds=max(left, 1.0))
    used = {} if job.status.others_stopped is None else {"others_stopped": None}
    return NextStep(writer.status(**used), events=events, next_seconds=max(left, 1.0))


def _stop(job: GPUJob, stop: StopReason, live: int, now: datetime) -> NextStep:
    """Makes the decision durable. The next cycle stops the pods."""
    writer = ConditionWriter(job, job.status, now)
    writer.set(conditions.RUNNING, False, stop.reason, stop.message)
    status = writer.status(phase=JobPhase.STOPPING, stop=stop)
    left = (stop.deadline - now).total_seconds()
    workers = format_count(live, "worker")
    text = f"attempt {status.attempt}, {workers}, {left:.0f} s of grace: {stop.message}"
    kind = EventType.NORMAL if rule_of(stop).asked_for else EventType.WARNING
    note = EventNote(f"Stopping{stop.reason}", text, kind)
    return NextStep(status, events=(note,), next_seconds=0.0)


def _stopping(
    job: GPUJob,
    inputs: JobInputs,
    live: tuple[PodView, ...],
    configuration: Configuration,
    now: datetime,
) -> NextStep:
    """Stops every live pod with SIGTERM and its grace.

    The workers of a gang are first asked through the reply to their reports, so that they agree on
    a step. Their pods are deleted after half of their grace, or without reports. Only a node that
    is about to go shortens the grace.
    """
    stop = job.status.stop
    left = max((stop.deadline - now).total_seconds(), 0.0) if stop is not None else 0.0
    bounded = rule_of(stop).bounds_grace
    grace = grace_seconds(job, configuration)
    until = asked_seconds(job, configuration) if bounded else grace
    asked = job.spec.workers > 1 and inputs.report is not None and left > until
    reason = stop.reason if stop is not None else "Stopping"
    deletes = tuple(
        delete_pod(job, pod, reason, configuration)
        for pod in live
        if pod.deletion_at is None and not asked
    )
    if bounded:
        most = max(int(left), GRACE_SECONDS_MIN)
        deletes = tuple(replace(one, grace_seconds=min(one.grace_seconds, most)) for one in deletes)
    status = with_report(job, job.status, inputs.report, configuration)
    late, next_seconds = past_grace(live, now)
    if asked:
        next_seconds = max(left - until, 1.0)
    if late and stop is not None:
        writer = ConditionWriter(job, status, now)
        writer.set(conditions.RUNNING, False, stop.reason, f"{stop.message}; {late}")
        status = writer.status()
    return NextStep(status, deletes=deletes, next_seconds=next_seconds)


def _ranks(pods: tuple[PodView, ...]) -> str:
    where = sorted({pod.node or "?" for pod in pods})
    return f"{format_count(len(pods), 'worker')} on {', '.join(where)}"


def begins_again(job: GPUJob, inputs: JobInputs) -> bool:
    """Returns whether a starting attempt needs another number before its pods are created.

    Another process placed it, and it has no pod. It is unknown whether a pod of it was ever
    created. That process may have ended before, or somebody may have force-deleted the pod while
    its node ran it. The next number fences off whatever existed (I3).
    """
    perhaps, pods = inputs.perhaps_created, inputs.job_pods
    if perhaps is None or not perhaps.by_another or pods.current:
        return False
    doubtful = perhaps_created_ranks(job, perhaps)
    return bool(doubtful) and not perhaps_workers(job, pods.in_the_way)


def begin_again(job: GPUJob, now: datetime) -> NextStep:
    """Returns the step to the next attempt number, with the same placement and start time."""
    before = job.status.attempt
    text = (
        f"attempt {before + 1} in place of attempt {before}, which another process of the operator "
        "placed: pods of it may have been created and removed"
    )
    writer = ConditionWriter(job, job.status, now)
    writer.set(conditions.SCHEDULED, True, "Placed", text)
    writer.set(conditions.RUNNING, False, "Starting", STARTING_MESSAGE)
    status = writer.status(attempt=before + 1)
    # The change of the status causes the next cycle.
    return NextStep(status, events=(EventNote("Placed", text),))
