"""Decides whether an attempt is stopped for a reason of the job itself."""

from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_operator.decide.lifecycle import faults
from gpujob_operator.decide.lifecycle.done import circumstances_of, known_done
from gpujob_operator.decide.lifecycle.faults import (
    gone_gpus,
    seconds_until_silent,
    stop_for_gone_gpus,
    tells,
)
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.start_refusals import (
    is_refused_start,
    refusal_of,
    start_seconds_left,
)
from gpujob_operator.decide.measurement.progress import (
    hang_limit_seconds,
    is_hung,
    is_past_last_step,
    with_report,
)
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.services import replica_id
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import (
    EVICTED,
    GPU_GONE,
    HUNG,
    NODE_GONE,
    START_TIMEOUT,
    SUSPENDED,
    WORKER_ENDED,
    WORKER_LOST,
)
from gpujob_operator.decide.model.workers import lost_ranks, perhaps_workers

# A worker without reports counts as active while it uses its GPU at least this much.
BUSY_PERCENT_MIN = 1.0
# A worker without reports whose processes no reading has shown for this long does not work.
ABSENT_SECONDS = 60.0


def reason_to_stop(
    job: GPUJob,
    pods: tuple[PodView, ...],
    inputs: JobInputs,
    configuration: Configuration,
    now: datetime,
) -> StopReason | None:
    """Returns the first reason to stop the attempt of these pods, or None."""
    deadline = now + timedelta(seconds=stop_seconds(job, configuration))
    if job.spec.suspend:
        return StopReason(SUSPENDED, "spec.suspend is true", deadline)
    done = known_done(job, pods, circumstances_of(job, inputs, now))
    ended = [pod for pod in pods if pod.ended and pod.rank not in done]
    if ended:
        return _after_an_end(job, ended, deadline)
    present = len(done | {pod.rank for pod in pods})
    is_short = job.status.phase is JobPhase.RUNNING and present < job.spec.workers
    if is_short or lost_ranks(job, inputs.job_pods, inputs.perhaps_created):
        message = f"{present} of {job.spec.workers} workers are left"
        return StopReason(WORKER_LOST, message, deadline)
    fault = faults.of(job, inputs.sites, now, deadline, configuration.device_access, inputs.usage)
    if fault is not None:
        return fault
    gone = stop_for_gone_gpus(job, inputs, now, deadline)
    if gone is not None:
        return gone
    evicted = _evicted(pods, deadline)
    if evicted is not None:
        return evicted
    if job.status.phase is JobPhase.STARTING:
        return _cannot_start(job, pods, inputs, configuration, now, deadline)
    return _hung(job, pods, inputs, configuration, now, deadline)


def _after_an_end(job: GPUJob, ended: list[PodView], deadline: datetime) -> StopReason:
    """Returns the stop of a gang some of whose workers have ended before their work was done."""
    if job.status.phase is JobPhase.RUNNING:
        for pod in ended:
            if is_refused_start(pod):
                # Its kubelet restarted. Such a pod ended from outside, although it looks like one
                # that was not started.
                text = f"the kubelet rejected pod {pod.name}, which had run ({pod.reason})"
                return StopReason(EVICTED, text, deadline)
    names = ", ".join(pod.name for pod in ended)
    return StopReason(
        WORKER_ENDED, f"{names} ended, so the other workers cannot continue", deadline
    )


def _evicted(pods: tuple[PodView, ...], deadline: datetime) -> StopReason | None:
    """Returns the stop if a pod of the attempt is being deleted from outside.

    Its worker has received its signal, and the other workers stop with it instead of waiting for
    it. They have their own grace (I13). The operator's own deletions follow a stop.
    """
    for pod in pods:
        if pod.deletion_at is not None and not pod.ended:
            by = pod.disruption or (pod.reason if pod.reason_is_of_pod else "not by the operator")
            return StopReason(EVICTED, f"pod {pod.name} is being deleted ({by})", deadline)
    return None


def _cannot_start(
    job: GPUJob,
    pods: tuple[PodView, ...],
    inputs: JobInputs,
    configuration: Configuration,
    now: datetime,
    deadline: datetime,
) -> StopReason | None:
    """Returns the stop of a starting attempt.

    Its node is gone, its pods are refused, or its time is up.
    """
    if inputs.lost_nodes:
        names = ", ".join(sorted(inputs.lost_nodes))
        return StopReason(NODE_GONE, f"node {names} went away before its pods ran", deadline)
    if perhaps_workers(job, inputs.job_pods.in_the_way):
        # The attempt could not end.
        return None
    refusal = refusal_of(job, pods, inputs, configuration, now)
    if refusal is not None:
        # A refusal may have time left when the attempt has none, because a long pull has just
        # failed.
        over = refusal.seconds_left <= 0
        return StopReason(refusal.reason, refusal.message, deadline) if over else None
    left = start_seconds_left(job, pods, configuration, now)
    if left >= 0:
        return None
    limit = configuration.start_timeout_seconds
    running = conditions.find(job.status, conditions.RUNNING)
    detail = f": {running.message}" if running is not None else ""
    slow = [pod for pod in pods if pod.phase is PodPhase.PENDING and pod.last_change_at is not None]
    if slow and not slow[0].reason:
        detail = f": the init containers of pod {slow[0].name} have not ended"
    return StopReason(START_TIMEOUT, f"did not start within {limit:.0f} s{detail}", deadline)


def _hung(
    job: GPUJob,
    pods: tuple[PodView, ...],
    inputs: JobInputs,
    configuration: Configuration,
    now: datetime,
    deadline: datetime,
) -> StopReason | None:
    limit_seconds = hang_limit_seconds(job, inputs.report)
    if _is_cut_off(inputs) or _may_work_silently(job, pods, inputs, now):
        return None
    # The status is written at intervals, so the last report may be newer.
    status = with_report(job, job.status, inputs.report, configuration)
    idle_seconds = is_hung(status, limit_seconds, now, _heard_since(job, inputs))
    if idle_seconds is None:
        return None
    gone = gone_gpus(job, inputs.sites)
    if gone:
        # Some threads continue to report although the GPU is gone.
        return StopReason(GPU_GONE, f"no progress for {idle_seconds:.0f} s, and {gone}", deadline)
    own_seconds = job.spec.retry.hang_timeout_seconds
    limit = f"retry.hangTimeoutSeconds is {own_seconds}"
    if limit_seconds > own_seconds:
        limit += f", {limit_seconds / own_seconds:.0f} times as long without steps"
    message = f"no progress for {idle_seconds:.0f} s ({limit})"
    return StopReason(HUNG, f"{message}{_after_last_step(job, inputs)}", deadline)


def _after_last_step(job: GPUJob, inputs: JobInputs) -> str:
    """Returns a hint if training is over and something else has not ended, or ""."""
    words = inputs.report.report if inputs.report is not None else None
    is_own = words is not None and words.attempt == job.status.attempt
    if words is None or not (is_own and is_past_last_step(words)):
        return ""
    return (
        f" since its last step, {words.step} of {words.steps_total}: an evaluation or an upload "
        "takes longer, or a thread does not end"
    )


def _may_work_silently(
    job: GPUJob, pods: tuple[PodView, ...], inputs: JobInputs, now: datetime
) -> bool:
    """Returns whether a worker from which no report arrives may work.

    It may be one of another framework. A network policy, or a lost right of the operator, may keep
    its reports away. Its GPU is then the only evidence, and for a replica its readiness probe. Old
    readings prove nothing.
    """
    if seconds_until_silent(job, inputs, now) > 0:
        return False
    if not all(tells(site) for site in inputs.sites):
        return True
    if replica_id(job) is not None and all(pod.ready for pod in pods):
        return True
    usage = inputs.usage
    if usage is None or usage.utilization_percent < BUSY_PERCENT_MIN:
        return False
    # A single reading may leave a process out.
    absent = usage.absent_since
    return absent is None or (now - absent).total_seconds() < ABSENT_SECONDS


def _is_cut_off(inputs: JobInputs) -> bool:
    """Returns whether a node of the attempt does not answer. Its worker cannot report, and the
    workers of a gang wait for it.
    """
    facts = (site.facts for site in inputs.sites)
    return any(one is not None and one.not_ready_since is not None for one in facts)


def _heard_since(job: GPUJob, inputs: JobInputs) -> datetime | None:
    """Returns since when reports of the job can arrive, or None if they always could.

    A node that was silent for long has the condition Running changed when it answers again.
    """
    running = conditions.find(job.status, conditions.RUNNING)
    answers_since = running.last_transition_time if running is not None else None
    moments = [at for at in (inputs.listening_since, answers_since) if at is not None]
    return max(moments, default=None)
