"""Decides how an attempt ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, JobFailure
from gpujob_api.report import Failure, FailureClass, WorkerPhase
from gpujob_api.settings import EXIT_DONE, EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_operator.decide.lifecycle.own_limits import exceeded
from gpujob_operator.decide.lifecycle.start_refusals import (
    START_ERRORS,
    Refusal,
    is_refused_start,
    refused_start,
)
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import StopRule, rule_of

EXIT_KILLED = 137
EXIT_OF_LAUNCHERS = 1
_INTERRUPTED = (EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED)
# Pod reasons in Kubernetes for a node that was lost, or restarted and found its containers dead.
# Kubernetes' garbage collector lets the pods of a node that is gone fail right before they go.
_NODE_LOSSES = ("ContainerStatusUnknown", "DeletionByPodGC", "NodeLost")
# Pod reasons of the kubelet for "this node could not run the pod", which is not the job's fault.
_NODE_REFUSALS = (
    "Evicted",
    "NodeAffinity",
    "NodeShutdown",
    "OutOf",
    "Preempting",
    "Terminated",
    "UnexpectedAdmissionError",
    *_NODE_LOSSES,
)


class AttemptEnd(Enum):
    """What the end of an attempt means for the job."""

    SUCCEEDED = "Succeeded"
    INTERRUPTED = "Interrupted"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt. `step` is the last step in any worker's termination message."""

    end: AttemptEnd
    # Of an interruption: what somebody else brought about (see `out_of_memory`), or None.
    failure: JobFailure | None = None
    step: int = 0
    # After an interruption: the node that was lost without notice; or "".
    lost_node: str = ""
    # Of an interruption: what kept the attempt from starting, where a pod ended before it ran.
    refusal: Refusal | None = None


def judge(
    job: GPUJob, pods: tuple[PodView, ...], lost_nodes: frozenset[str] = frozenset()
) -> Outcome:
    """The outcome of an attempt whose workers have all ended or are gone.

    A pod that is gone without an exit code was removed with its node or by someone, so the attempt
    was interrupted. `lost_nodes` are nodes of the attempt that no longer exist.
    """
    stop = job.status.stop
    rule = rule_of(stop)
    # A worker that ended before the stop was not killed by it, even if the signal is the same.
    ours = stop is not None and not rule.worker_ended_first
    ranks = {pod.rank for pod in pods}
    complete = ranks.issuperset(range(job.spec.workers))
    early = ours and any(_left_early(pod, rule) for pod in pods)
    if complete and not early and all(pod.exit_code == EXIT_DONE for pod in pods):
        return Outcome(AttemptEnd.SUCCEEDED)
    failures = [_pod_failure(job, pod, ours=ours) for pod in sorted(pods, key=_cause_first)]
    real = [failure for failure in failures if failure is not None]
    if stop is not None and rule.failure is not None:
        return Outcome(AttemptEnd.FAILED, JobFailure(rule.failure, stop.message))
    if not real or (ours and all(_is_kill(pod) for pod in pods if _failed(pod))):
        lost = _lost_node(job, pods, lost_nodes)
        refusal = None if lost or ours else refused_start(job, pods)
        return Outcome(AttemptEnd.INTERRUPTED, lost_node=lost, refusal=refusal)
    steps = [pod.termination.step for pod in pods if pod.termination is not None]
    return Outcome(AttemptEnd.FAILED, real[0], max(steps, default=0))


def _left_early(pod: PodView, rule: StopRule) -> bool:
    """Whether a worker that was asked to stop ended with 0 before its last step.

    Trainers that save on SIGTERM do, and scripts with a handler of their own. One that says nothing
    was asked once its pod was being deleted. One that says that it finished, and whose pod nobody
    deleted, ended before it was asked: a script may end before the steps that it announced. Only a
    node that is about to go sends SIGTERM without a deletion.
    """
    if pod.exit_code != EXIT_DONE:
        return False
    words = pod.termination
    if words is None:
        return pod.deletion_at is not None
    unasked = pod.deletion_at is None and pod.phase is not PodPhase.FAILED
    if words.phase is WorkerPhase.FINISHED and unasked and not rule.bounds_grace:
        return False
    if words.steps_total is not None:
        return words.step < words.steps_total
    return words.phase is not WorkerPhase.FINISHED


def _cause_first(pod: PodView) -> tuple[object, ...]:
    """The worker that failed first is the cause; workers that were killed because of it are not."""
    at = pod.finished_at.timestamp() if pod.finished_at is not None else float("inf")
    return _is_kill(pod), at, pod.rank


def _pod_failure(job: GPUJob, pod: PodView, *, ours: bool) -> JobFailure | None:
    limit = "" if ours else exceeded(pod)
    if limit:
        return JobFailure(FailureClass.UNKNOWN, limit)
    if pod.exit_code in (EXIT_DONE, *_INTERRUPTED, None) and not _failed_start(pod):
        return None
    reported = pod.termination.failure if pod.termination is not None else None
    if reported is not None:
        return JobFailure(reported.failure_class, _with_need(reported))
    if is_refused_start(pod) or _launcher_was_stopped(pod):
        return None
    if pod.phase is PodPhase.FAILED and pod.reason.startswith(_NODE_REFUSALS):
        return None
    if pod.reason in START_ERRORS:
        message = f"worker {pod.rank} could not be started: {pod.termination_text[-400:]}"
        return JobFailure(FailureClass.USER_ERROR, message)
    if pod.reason == "OOMKilled":
        return JobFailure(FailureClass.HOST_OUT_OF_MEMORY, _host_memory(job, pod))
    text = pod.termination_text or pod.message or pod.reason
    detail = f": {text[-400:]}" if text else ""
    if pod.termination is not None:
        # A worker's own last report stands where the log's last lines would.
        detail += f"; kubectl logs {pod.name} has the rest"
    message = f"worker {pod.rank} exited with code {pod.exit_code}{detail}"
    return JobFailure(FailureClass.UNKNOWN, message)


def _launcher_was_stopped(pod: PodView) -> bool:
    """Whether a launcher ended with its own code after its workers left as they were asked to.

    torchrun without the worker in it ends with 1 when its processes end with 143.
    """
    words = pod.termination
    return pod.exit_code == EXIT_OF_LAUNCHERS and (
        words is not None and words.phase is WorkerPhase.DRAINING
    )


def _host_memory(job: GPUJob, pod: PodView) -> str:
    """A kubelet kills a container nearly always for its own limit, which a LimitRange may set too;
    only without any for the node's memory."""
    limit = _memory_limit(job)
    if limit:
        limit_text = f"its memory limit of {limit} (resources.limits.memory)"
    else:
        limit_text = (
            "the memory limit that a LimitRange of the namespace gives it, or what the node has"
        )
    return (
        f"worker {pod.rank} was killed for host memory above {limit_text}; /dev/shm counts as well"
    )


def _memory_limit(job: GPUJob) -> str:
    try:
        found: Any = job.spec.worker_container()
    except FieldError:
        return ""
    for name in ("resources", "limits", "memory"):
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
    return str(found or "")[:32]


def _lost_node(job: GPUJob, pods: tuple[PodView, ...], lost_nodes: frozenset[str]) -> str:
    stop, placement = job.status.stop, job.status.placement
    if placement is None or (stop is not None and not rule_of(stop).is_consequence):
        return ""
    failed = {pod.rank for pod in pods if pod.reason.startswith(_NODE_LOSSES)}
    ended = {pod.rank for pod in pods if pod.exit_code is not None}
    for worker in placement.workers:
        vanished = worker.node in lost_nodes and worker.rank not in ended
        if vanished or worker.rank in failed:
            return worker.node
    return ""


def _with_need(failure: Failure) -> str:
    need = f" (needs {failure.needed_bytes} bytes)" if failure.needed_bytes else ""
    return failure.message[-600:] + need


def _failed_start(pod: PodView) -> bool:
    """A pod that failed without ever running. The node causes `OutOfcpu` and similar reasons."""
    failed = pod.phase is PodPhase.FAILED and pod.exit_code is None
    return failed and not pod.reason.startswith(_NODE_REFUSALS)


def _failed(pod: PodView) -> bool:
    return pod.exit_code not in (EXIT_DONE, *_INTERRUPTED, None)


def _is_kill(pod: PodView) -> bool:
    """True for SIGKILL at the end of the grace, whatever stopped the attempt."""
    return pod.exit_code == EXIT_KILLED and pod.termination is None
