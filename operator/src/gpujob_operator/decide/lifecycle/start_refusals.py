"""Attempts that cannot start: what refused them, how long to wait for it, and what follows.

Three components refuse a pod: the API server its creation, kube-scheduler its node, and a kubelet
its start. Each refusal ends the attempt within a minute, so that its GPUs become free. A component
that gives no answer, such as a kube-scheduler that is down or a slow registry, refuses the attempt
when its time to start is over. No refusal is the job's error. The job avoids the node for a while
and is tried again after a pause. Both times grow while the job does not run.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.report import Report
from gpujob_api.start_refusal import BESIDE_MAX, START_REFUSALS_MAX, StartRefusal
from gpujob_operator.decide.lifecycle.done import OWN_LIMITS
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.start_advice import with_advice
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.spec_refusals import current_refusals
from gpujob_operator.decide.model.stop_reasons import CANNOT_START, POD_REJECTED, UNSCHEDULABLE
from gpujob_operator.decide.model.workers import place_of

# kube-scheduler may not have seen yet what has just ended on the node.
UNSCHEDULABLE_SECONDS = 5.0
# Wait by kube-scheduler's reason. kube-scheduler retries by itself after an internal error.
SCHEDULER_ERROR_SECONDS = 30.0
_SCHEDULER_SECONDS = {
    UNSCHEDULABLE: UNSCHEDULABLE_SECONDS,
    "SchedulerError": SCHEDULER_ERROR_SECONDS,
}
# A claim may have been created right before the pod, and the storage class needs time to create its
# volume.
UNBOUND_CLAIM_SECONDS = 60.0
_UNBOUND_CLAIM = "unbound immediate PersistentVolumeClaims"
# A registry or a secret may become available a moment later.
CANNOT_START_SECONDS = 30.0
# Volumes need time to be attached. Each wait is twice as long as the one before.
SANDBOX_SECONDS = 45.0
NODE_AVOIDED_SECONDS = 60.0
# Of two nodes that refused the job, the later one is avoided for this much longer than the other.
TURN_SECONDS = 5.0
# An attempt that ran this long has not failed at its start.
USED_SECONDS = 60.0
# Not longer than pauses: what the node lacks may be a secret, and it may be the only node.
NODE_AVOIDED_SECONDS_MAX = 600.0
# Messages of kube-scheduler and of kubelets about a node that is full. The next pod that ends there
# makes room, so the node is never avoided for long. The operator places no pods beyond what it
# knows of, but a LimitRange or a webhook may add requests, and other pods may come first.
_FULL = re.compile(
    r"Too many pods|Insufficient (cpu|memory)(?![\w/-]|\.\w)|OutOf(cpu|memory|pods)\b"
)
# The kubelet's reasons for a container that it cannot start as it is.
_CANNOT_START = frozenset(
    {
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"),
        *("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"),
        *("PreCreateHookError", "PreStartHookError"),
    }
)
# The kubelet's reasons for a pod that it does not accept at all.
_NOT_TAKEN = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError")
# The kubelet's reasons for a container whose first process could not be started.
START_ERRORS = ("StartError", "ContainerCannotRun")
# Messages with these reasons that mean that the image has no such command. Otherwise the node's
# runtime is to blame.
_NO_COMMAND = (
    *("executable file not found", "no such file or directory", "permission denied"),
    *("is a directory", "exec format error"),
)
_UNSEEN = "kube-scheduler has not looked at it (does it run?)"
_NO_SANDBOX = (
    "its volumes or its network are not ready (is a secret, a config map or a claim missing? "
    "kubectl describe pod has the kubelet's words)"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What keeps one worker from starting. `seconds_left` is how long it is still waited for.

    `node` is None if the worker would be refused on any node. `beside` are the nodes on which other
    workers of its gang were accepted.
    """

    reason: str
    message: str
    node: str | None
    seconds_left: float
    beside: tuple[str, ...] = ()


def refusal_of(
    job: GPUJob,
    pods: Iterable[PodView],
    inputs: JobInputs,
    configuration: Configuration,
    now: datetime,
) -> Refusal | None:
    """Returns the first refusal that ends the attempt now or later, or None if its workers may
    start.
    """
    present = {pod.rank for pod in pods}
    for one in sorted(inputs.refused_pods, key=lambda one: one.rank):
        if one.attempt == job.status.attempt and one.rank not in present:
            message = f"the API server refused the pod of worker {one.rank}: {one.message}"
            return Refusal(POD_REJECTED, with_advice(message), None, 0.0)
    pods = tuple(pods)
    found = [_of_pod(job, pod, _beside(pod, pods), configuration, now) for pod in pods]
    found.append(_out_of_time(job, tuple(pods), configuration, now))
    return min(
        (one for one in found if one is not None), key=lambda one: one.seconds_left, default=None
    )


def _beside(pod: PodView, pods: tuple[PodView, ...]) -> tuple[str, ...]:
    """Returns the nodes on which kube-scheduler has accepted other workers of the attempt."""
    taken = {other.node for other in pods if other is not pod and other.node is not None}
    return tuple(sorted(taken))[:BESIDE_MAX]


def _of_pod(
    job: GPUJob,
    pod: PodView,
    beside: tuple[str, ...],
    configuration: Configuration,
    now: datetime,
) -> Refusal | None:
    place = place_of(pod, job)
    if place is None or pod.phase is not PodPhase.PENDING or pod.deletion_at is not None:
        return None
    waited_seconds = (now - (pod.scheduled_since or pod.created_at or now)).total_seconds()
    if pod.node is None:
        limit = _SCHEDULER_SECONDS.get(pod.reason)
        if limit is None:
            return None
        if pod.preempts:
            # The preempted pods have their grace. Giving up earlier would end them for nothing,
            # node by node.
            limit = max(limit, configuration.start_timeout_seconds)
        text = f"kube-scheduler refused pod {pod.name} on {place.node}: {pod.message}"
        # Another node would not get the volume any sooner.
        is_of_node = _UNBOUND_CLAIM not in pod.message
        left = (limit if is_of_node else UNBOUND_CLAIM_SECONDS) - waited_seconds
        node = place.node if is_of_node else None
        beside = beside if is_of_node else ()
        return Refusal(UNSCHEDULABLE, with_advice(text), node, left, beside)
    if pod.reason in _CANNOT_START:
        text = f"pod {pod.name} cannot start on {place.node}: {pod.reason}: {pod.message}"
        if pod.reason_since is not None:
            # Pulling its images may have taken an hour before.
            waited_seconds = (now - pod.reason_since).total_seconds()
        left = CANNOT_START_SECONDS - waited_seconds
        return Refusal(CANNOT_START, with_advice(text), place.node, left)
    if pod.sandbox_ready:
        return None
    # Only pods that could not start count. A refusal by kube-scheduler is no sign about volumes.
    waits = _count(one for one in job.status.start_refusals if one.reason == CANNOT_START)
    limit = backoff_seconds(SANDBOX_SECONDS, waits, configuration.start_timeout_seconds)
    text = f"pod {pod.name} cannot start on {place.node}: {_NO_SANDBOX}"
    return Refusal(CANNOT_START, text, place.node, limit - waited_seconds)


def _out_of_time(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration, now: datetime
) -> Refusal | None:
    """Returns what has kept an attempt from starting for too long without a stated reason.

    Returns None if the cause is the job's own: a slow container, such as an init container, or a
    scheduler or a gate that its template names.
    """
    left = start_seconds_left(job, pods, configuration, now)
    if left > 0:
        return None
    pulls = any(pod.pulls_images for pod in pods)
    seconds = pull_limit_seconds(configuration) if pulls else configuration.start_timeout_seconds
    limit = f"{seconds:.0f} s"
    missing = sorted(set(range(job.spec.workers)) - {pod.rank for pod in pods})
    if missing:
        running = conditions.find(job.status, conditions.RUNNING)
        detail = f": {running.message}" if running is not None and running.message else ""
        text = f"the pod of worker {missing[0]} was not created within {limit}{detail}"
        return Refusal(POD_REJECTED, text, None, left)
    waiting = [pod for pod in pods if pod.phase is PodPhase.PENDING and pod.deletion_at is None]
    for pod in waiting:
        if pod.node is None and not _schedules_itself(job):
            said = f"{pod.reason}: {pod.message}" if pod.reason else _UNSEEN
            text = f"pod {pod.name} was not scheduled within {limit}: {said}"
            return Refusal(UNSCHEDULABLE, text, None, left)
    for pod in waiting:
        place = place_of(pod, job)
        if place is None or pod.node is None:
            continue
        if pod.pulls_images:
            text = f"the images of pod {pod.name} were not pulled on {place.node} within {limit}"
            return Refusal(CANNOT_START, text, place.node, left)
        if not pod.reason and pod.last_change_at is None:
            text = (
                f"no container of pod {pod.name} was started on {place.node} within {limit}, and "
                "the kubelet gives no reason"
            )
            return Refusal(CANNOT_START, text, place.node, left)
    return None


def _schedules_itself(job: GPUJob) -> bool:
    """Returns whether the template names its own scheduler or scheduling gates."""
    spec = job.spec.template.get("spec")
    own = cast("Mapping[str, Any]", spec) if isinstance(spec, Mapping) else {}
    return bool(own.get("schedulerName") or own.get("schedulingGates"))


def is_refused_start(pod: PodView) -> bool:
    """Returns whether the pod ended before it ran, because of its node."""
    if pod.phase is not PodPhase.FAILED:
        return False
    if pod.reason in START_ERRORS:
        return not any(words in pod.termination_text for words in _NO_COMMAND)
    return pod.exit_code is None and (pod.reason.startswith(_NOT_TAKEN) or _is_not_admitted(pod))


def _is_not_admitted(pod: PodView) -> bool:
    """Returns whether a kubelet refused the pod as a whole, before any of its containers ran."""
    return pod.reason_is_of_pod and pod.last_change_at is None and pod.reason not in OWN_LIMITS


def refused_start(job: GPUJob, pods: Iterable[PodView]) -> Refusal | None:
    """Returns the refusal of the first of the ended pods that was not started, or None."""
    for pod in pods:
        place = place_of(pod, job)
        if place is not None and is_refused_start(pod):
            words = pod.termination_text or pod.message
            text = f"pod {pod.name} was not started on {place.node}: {pod.reason}: {words}"
            return Refusal(CANNOT_START, with_advice(text), place.node, 0.0)
    return None


def with_refusal(
    job: GPUJob, refusal: Refusal, configuration: Configuration, now: datetime
) -> GPUJobStatus:
    """Returns the status with the refusal, among the newest refusals of this spec.

    Every node that refused the job is avoided for longer than the job now pauses, and a node that
    refused it later for longer than one that refused it before. Otherwise the job would return to
    the cheapest of these nodes each time and never try another one.
    """
    place, held = (refusal.node, refusal.beside), current_refusals(job)
    before = next((one for one in held if (one.node, one.beside) == place), None)
    count = before.count + 1 if before is not None else 1
    generation = job.metadata.generation
    known = StartRefusal(refusal.reason, refusal.message, count, now, *place, generation)
    others = [one for one in held if one is not before]
    newest = (*others, known)[-START_REFUSALS_MAX:]
    tried_at = now + timedelta(seconds=pause_seconds(newest, configuration))
    longer = 0 if _FULL.search(refusal.message) else count - 1
    avoided_until = now + timedelta(
        seconds=backoff_seconds(NODE_AVOIDED_SECONDS, longer, NODE_AVOIDED_SECONDS_MAX)
    )
    avoided: list[StartRefusal] = []
    for turn, one in enumerate(newest):
        seconds = NODE_AVOIDED_SECONDS + turn * TURN_SECONDS
        least = avoided_until if one.node == refusal.node else one.until
        until = max(one.until, least, tried_at + timedelta(seconds=seconds))
        avoided.append(replace(one, until=until))
    # The rule that two workers must be on different nodes is kept until the other nodes may be
    # tried again. Otherwise both workers would come to one node meanwhile, and that refusal would
    # put the other nodes off without end.
    apart_until = max(one.until for one in avoided) + timedelta(seconds=NODE_AVOIDED_SECONDS)
    return changed(
        job.status,
        start_refusals=tuple(
            replace(one, until=apart_until) if one.node in one.beside else one for one in avoided
        ),
    )


def pause_seconds(refusals: tuple[StartRefusal, ...], configuration: Configuration) -> float:
    """Returns how long a job with these refusals waits before its next attempt. The newest is last.

    It does not wait after the first node that refused it. Later waits are longer each time, but not
    while nodes refuse it that it had not tried before: the next one may take it.
    """
    anywhere = any(one.node is None for one in refusals)
    tries = _count(refusals) - (1 if anywhere else 2)
    if tries < 0:
        return 0.0
    remembers_all = len(refusals) < START_REFUSALS_MAX
    if remembers_all and not anywhere and refusals[-1].count == 1:
        tries = 0
    return backoff_seconds(
        configuration.retry_backoff_seconds, tries, configuration.retry_backoff_max_seconds
    )


def once_it_runs(status: GPUJobStatus) -> GPUJobStatus:
    """Returns the status of a job whose pods can start.

    Refusals on all nodes are over, and pauses are short again. Nodes that refused its pods are
    still avoided for a while.
    """
    if not status.start_refusals:
        return status
    kept = tuple(replace(one, count=1) for one in status.start_refusals if one.node is not None)
    return changed(status, start_refusals=kept)


def seconds_until_used(status: GPUJobStatus, report: Report | None, now: datetime) -> float:
    """Returns how long a running attempt still has to show that it uses its victims' capacity.

    It shows this by a step, or by not failing for a while. Returns 0 if it has, or if no job was
    stopped for it.
    """
    if status.others_stopped is None:
        return 0.0
    running = conditions.find(status, conditions.RUNNING)
    if running is None:
        return 0.0
    makes_steps = report is not None and report.attempt == status.attempt and report.step > 0
    since = (now - running.last_transition_time).total_seconds()
    return 0.0 if makes_steps else max(USED_SECONDS - since, 0.0)


def _count(refusals: Iterable[StartRefusal]) -> int:
    return sum(one.count for one in refusals)


def age_seconds(job: GPUJob, now: datetime) -> float:
    """Returns the age of the attempt in seconds."""
    started = job.status.attempt_started_at or now
    return (now - started).total_seconds()


def start_seconds_left(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration, now: datetime
) -> float:
    """Returns how long the attempt may still take to start.

    The time for pulling images does not count: the time begins again whenever a container of the
    attempt has started or ended.
    """
    present = {pod.rank for pod in pods}
    pending = any(pod.phase is PodPhase.PENDING for pod in pods)
    if len(present) == job.spec.workers and not pending:
        # The attempt has started.
        return configuration.start_timeout_seconds
    if any(pod.pulls_images for pod in pods):
        return pull_limit_seconds(configuration) - age_seconds(job, now)
    # A kubelet's clock may be ahead, and the attempt would then never be late.
    moments = [at for pod in pods if (at := pod.last_change_at) is not None and at <= now]
    since = max([job.status.attempt_started_at or now, *moments])
    return configuration.start_timeout_seconds - (now - since).total_seconds()


def pull_limit_seconds(configuration: Configuration) -> float:
    """Returns the limit for an attempt whose images are being pulled, in seconds."""
    return max(configuration.image_pull_timeout_seconds, configuration.start_timeout_seconds)
