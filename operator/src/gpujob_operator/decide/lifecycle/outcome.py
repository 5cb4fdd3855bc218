"""Decides how an attempt ended."""

import re
import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, JobFailure, JobPhase
from gpujob_api.report import Failure, FailureClass, WorkerPhase
from gpujob_api.settings import EXIT_DONE, EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_operator.decide.lifecycle.done import (
    DELETED,
    NODE_LOSSES,
    OOM_KILLED,
    Circumstances,
    broke_off_by_itself,
    known_done,
    node_refused,
    outside_reason,
)
from gpujob_operator.decide.lifecycle.start_advice import with_command_advice
from gpujob_operator.decide.lifecycle.start_refusals import (
    START_ERRORS,
    Refusal,
    is_refused_start,
    refused_start,
)
from gpujob_operator.decide.lifecycle.transient import comes_from_outside
from gpujob_operator.decide.lifecycle.user_errors import (
    lacks_gpu_memory,
    lacks_relative_file,
    last_exception,
    last_line,
    user_error_in,
)
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import rule_of

EXIT_KILLED = 137
_INTERRUPTED = (EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED)
_EXIT_ABORTED, _EXIT_BUS_ERROR = 134, 135
# The exit codes of a shell for SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE and SIGSEGV. No stop sends
# these signals.
_CRASHES = (132, 133, _EXIT_ABORTED, _EXIT_BUS_ERROR, 136, 139)
# Errors of a process about another one that it started and that was killed.
_LOST_PROCESS = re.compile(
    r"killed|SIGKILL|exited unexpectedly|terminated abruptly|ChildFailedError|non-zero exit|\b-9\b",
    re.IGNORECASE,
)
_DEADLINE_EXCEEDED = "DeadlineExceeded"
_EVICTED = "Evicted"
# The kubelet's messages for a limit of the pod itself. For a node that ran short the message is
# "The node was low on resource".
_OWN_STORAGE = (
    "Usage of EmptyDir volume",
    "Pod ephemeral local storage usage exceeds",
    "exceeded its local ephemeral storage limit",
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
    # After an interruption: a failure that was caused from outside (see `out_of_memory`), or None.
    failure: JobFailure | None = None
    step: int = 0
    # After a failure: the error as reported by the worker or the log's last line, or "". After an
    # interruption: how a worker ended with 0 before its last step although nothing asked it to.
    error: str = ""
    # After an interruption: the node that was lost without notice, or "".
    lost_node: str = ""
    # After an interruption: what kept the attempt from starting, if a pod ended before it ran.
    refusal: Refusal | None = None
    # After an interruption: what ended a worker from outside, in words, or "".
    ended_by: str = ""
    # After an interruption: a GPU of the attempt became unhealthy, and a worker failed.
    gpu_broke: bool = False


def judge(
    job: GPUJob,
    pods: tuple[PodView, ...],
    lost_nodes: frozenset[str] = frozenset(),
    around: Circumstances | None = None,
) -> Outcome:
    """Returns the outcome of an attempt whose workers have all ended or are gone.

    A pod that is gone without an exit code was removed with its node or by a person, so the attempt
    was interrupted. `lost_nodes` are nodes of the attempt that no longer exist. `around` is None if
    only the stop is known.
    """
    stop, around = job.status.stop, around or Circumstances(job.status.stop)
    rule = rule_of(stop)
    # A worker that ended before the stop was not killed by it, even if the signal is the same.
    ours = stop is not None and not rule.worker_ended_first
    done = known_done(job, pods, around)
    if done >= set(range(job.spec.workers)):
        return Outcome(AttemptEnd.SUCCEEDED)
    present = done | {pod.rank for pod in pods}
    pods = tuple(pod for pod in pods if pod.rank not in done)
    failures = [_pod_failure(job, pod, ours=ours) for pod in sorted(pods, key=_cause_first)]
    real = [failure for failure in failures if failure is not None]
    if stop is not None and rule.failure is not None:
        return Outcome(AttemptEnd.FAILED, JobFailure(rule.failure, stop.message))
    lost_peer = _lost_peer(job, pods, done, lost_nodes, around) if job.spec.workers > 1 else ""
    known = job.status.failure
    if known is not None and rule.worker_ended_first and len(present) < job.spec.workers:
        # The pod of the worker that ended first is gone.
        real.insert(0, _Cause(known, known.message))
    stopped = lost_peer or (ours and job.spec.workers > 1)
    if real and stopped and all(_follows_from_lost_peer(cause) for cause in real):
        lost = _lost_node(job, pods, lost_nodes)
        return Outcome(AttemptEnd.INTERRUPTED, lost_node=lost, ended_by=lost_peer)
    if not real or (ours and all(_is_kill(pod) for pod in pods if _failed(pod))):
        lost = _lost_node(job, pods, lost_nodes)
        # A kubelet that restarts may reject a pod that has run for hours.
        has_run = job.status.phase is JobPhase.RUNNING
        refusal = None if lost or ours or has_run else refused_start(job, pods)
        by = _ended_by(pods) or _ended_on_lost_node(pods, lost_nodes)
        error = "" if ours or lost else _broken_off(pods, around)
        return Outcome(
            AttemptEnd.INTERRUPTED,
            error=error,
            lost_node=lost,
            refusal=refusal,
            ended_by=by or error,
        )
    steps = [pod.termination.step for pod in pods if pod.termination is not None]
    cause = _first_cause(real)
    return Outcome(AttemptEnd.FAILED, cause.failure, max(steps, default=0), cause.error)


def failure_so_far(job: GPUJob, pods: tuple[PodView, ...]) -> JobFailure | None:
    """Returns the failure of a worker while others run. Its pod may be gone when these
    have ended.
    """
    ended = sorted((pod for pod in pods if pod.ended), key=_cause_first)
    causes = [_pod_failure(job, pod, ours=False) for pod in ended]
    real = [cause for cause in causes if cause is not None]
    return _first_cause(real).failure if real else None


def _ended_by(pods: tuple[PodView, ...]) -> str:
    """Returns what ended the first of the workers from outside, in words, or ""."""
    for pod in sorted(pods, key=_cause_first):
        reason = outside_reason(pod)
        if reason:
            said = f": {pod.message[-200:]}" if pod.message and reason == pod.reason else ""
            text = f"pod {pod.name} was ended from outside ({reason}{said})"
            return f"{text} before its last step" if pod.exit_code == EXIT_DONE else text
        refused = pod.termination.resume_refused if pod.termination is not None else None
        if refused is not None and pod.exit_code == EXIT_INTERRUPTED_UNSAVED:
            return (
                f"the checkpoint of step {refused.step} did not bring worker {pod.rank} back: "
                f"{refused.reason}"
            )
        if _left_as_asked(pod) or pod.exit_code in _INTERRUPTED:
            early = " before its last step" if pod.exit_code == EXIT_DONE else ""
            return f"worker {pod.rank} was asked to end, and ended with {pod.exit_code}{early}"
    return ""


def _ended_on_lost_node(pods: tuple[PodView, ...], lost_nodes: frozenset[str]) -> str:
    """Returns which worker ended with 0, perhaps because its node went away, in words, or ""."""
    for pod in pods:
        if pod.exit_code == EXIT_DONE and pod.node in lost_nodes:
            return (
                f"worker {pod.rank} ended with 0 on node {pod.node}, which is gone, and no report "
                "shows its last step"
            )
    return ""


def _broken_off(pods: tuple[PodView, ...], around: Circumstances) -> str:
    """Returns which worker ended early by itself with 0, in words, or ""."""
    rank = next((pod.rank for pod in pods if broke_off_by_itself(pod, around)), None)
    if rank is None:
        return ""
    return (
        f"worker {rank} ended with 0 before its last step, and nothing asked it to end; "
        "a script is done when it returns, or by sys.exit"
    )


def _lost_peer(
    job: GPUJob,
    pods: tuple[PodView, ...],
    done: Set[int],
    lost_nodes: frozenset[str],
    around: Circumstances,
) -> str:
    """Returns what ended one worker of a gang from outside, in words, or "".

    It may have ended with 0, unless it was done.

    A deletion after a worker ended is the operator's own and explains nothing.
    """
    placement = job.status.placement
    by_rank = {pod.rank: pod for pod in pods}
    own_deletions = around.stop is not None
    for worker in placement.workers if placement is not None else ():
        pod = by_rank.get(worker.rank)
        if worker.rank in done:
            continue
        if worker.node in lost_nodes and (pod is None or pod.exit_code is None):
            return f"node {worker.node} was lost"
        if pod is None:
            continue
        reason = outside_reason(pod)
        if reason and not (own_deletions and reason == DELETED):
            return f"pod {pod.name} was ended from outside ({reason})"
        if worker.node in around.leaving_nodes and pod.exit_code in (
            EXIT_DONE,
            *_INTERRUPTED,
            EXIT_KILLED,
        ):
            return f"node {worker.node} is about to go"
    return ""


def _follows_from_lost_peer(cause: "_Cause") -> bool:
    """Returns whether a worker fails like this if another one of its gang is gone.

    Collective calls fail with an error of the network, and their watchdog aborts the process.
    """
    if cause.failure.failure_class is not FailureClass.UNKNOWN:
        return False
    return not cause.error or comes_from_outside(cause.error) or cause.is_abort


def _first_cause(causes: "Sequence[_Cause]") -> "_Cause":
    """Returns the first cause, in order of time, that does not follow from another worker's end.

    Times alone mislead: they come from several clocks, and the worker that failed first may take
    longer to exit than those that lost their connection to it.
    """
    own = (cause for cause in causes if not _follows_from_lost_peer(cause))
    return next(own, causes[0])


def _cause_first(pod: PodView) -> tuple[object, ...]:
    """Orders the worker that failed first to the front, because others were killed
    because of it.
    """
    at = pod.finished_at.timestamp() if pod.finished_at is not None else float("inf")
    return _is_kill(pod), at, pod.rank


@dataclass(frozen=True, slots=True)
class _Cause:
    """The failure of one worker, its error as in `Outcome`, and whether it aborted itself."""

    failure: JobFailure
    error: str = ""
    is_abort: bool = False


def _pod_failure(job: GPUJob, pod: PodView, *, ours: bool) -> _Cause | None:
    """Returns the failure of a worker that is not done, or None.

    Signs of an end from outside come before the exit code, because a script that was asked to end
    chooses its own. Only the worker's own report comes before these signs.
    """
    limit = "" if ours else _limit_exceeded(pod)
    if limit:
        return _Cause(JobFailure(FailureClass.UNKNOWN, limit))
    if pod.reason == OOM_KILLED and pod.exit_code == EXIT_DONE:
        return _Cause(JobFailure(FailureClass.HOST_OUT_OF_MEMORY, _host_memory(job, pod)))
    if pod.exit_code in (EXIT_DONE, *_INTERRUPTED, None) and not _failed_start(pod):
        return None
    reported = pod.termination.failure if pod.termination is not None else None
    if reported is not None and pod.reason == OOM_KILLED and _LOST_PROCESS.search(reported.message):
        text = f"{_host_memory(job, pod)}; {reported.message[-400:].strip()}"
        return _Cause(JobFailure(FailureClass.HOST_OUT_OF_MEMORY, text))
    if reported is not None:
        return _Cause(JobFailure(_class_of(reported), _with_need(reported)), reported.message)
    if is_refused_start(pod) or _left_as_asked(pod):
        return None
    if pod.finished and node_refused(pod):
        return None
    return _unreported_failure(job, pod)


def _limit_exceeded(pod: PodView) -> str:
    """Returns which of its own limits ended the pod, in words, or "".

    A pod that runs longer or stores more than its template allows does so on every node, so this
    counts as its failure. Such a pod may have Succeeded if its containers then ended with 0.
    """
    if not pod.finished:
        return ""
    if pod.reason == _DEADLINE_EXCEEDED:
        return f"worker {pod.rank} ran for longer than the template's activeDeadlineSeconds"
    if pod.reason == _EVICTED and any(words in pod.message for words in _OWN_STORAGE):
        return f"worker {pod.rank} was evicted for its own storage: {pod.message[-400:]}"
    return ""


def _unreported_failure(job: GPUJob, pod: PodView) -> _Cause | None:
    """Returns the failure by Kubernetes' reasons and the log's last lines, or None."""
    if pod.reason in START_ERRORS:
        message = f"worker {pod.rank} could not be started: {pod.termination_text[-400:]}"
        message = with_command_advice(message)
        return _Cause(JobFailure(FailureClass.USER_ERROR, message))
    if pod.reason == OOM_KILLED:
        return _Cause(JobFailure(FailureClass.HOST_OUT_OF_MEMORY, _host_memory(job, pod)))
    if outside_reason(pod) and pod.exit_code not in _CRASHES:
        return None
    if pod.exit_code is None:
        return _unstarted_failure(pod)
    what = f"worker {pod.rank} exited with code {_code_in_words(pod.exit_code)}"
    mistake = user_error_in(pod)
    if mistake:
        text = f"{what}: {mistake}; kubectl logs {pod.name} has the rest"
        return _Cause(JobFailure(FailureClass.USER_ERROR, text), mistake)
    text = pod.termination_text or pod.message or pod.reason.removeprefix("Error")
    raised = last_exception(pod.termination_text)
    detail = f": {raised or text[-400:]}" if text else ""
    if raised or pod.termination is not None:
        # A worker's last report takes the place of the log's last lines.
        detail += f"; kubectl logs {pod.name} has the rest"
    kind = FailureClass.OUT_OF_MEMORY if lacks_gpu_memory(raised) else FailureClass.UNKNOWN
    failure = JobFailure(kind, f"{what}{detail}")
    is_abort = pod.exit_code == _EXIT_ABORTED
    return _Cause(failure, last_line(pod.termination_text), is_abort)


def _code_in_words(exit_code: int) -> str:
    """Returns the exit code, with the signal that it stands for."""
    if exit_code not in (*_CRASHES, EXIT_KILLED):
        return str(exit_code)
    hint = ", as if /dev/shm is too small" if exit_code == _EXIT_BUS_ERROR else ""
    return f"{exit_code} ({signal.Signals(exit_code - 128).name}{hint})"


def _unstarted_failure(pod: PodView) -> _Cause:
    """Returns the failure of a worker that never ran, mostly because an init container failed."""
    mistake = user_error_in(pod)
    kind = FailureClass.USER_ERROR if mistake else FailureClass.UNKNOWN
    detail = "; ".join(
        text for text in (pod.message or pod.reason, pod.termination_text[-400:]) if text
    )
    message = f"worker {pod.rank} was not started: {detail or 'its pod failed without a reason'}"
    return _Cause(
        JobFailure(kind, message), mistake or last_line(pod.termination_text) or pod.message
    )


def _left_as_asked(pod: PodView) -> bool:
    """Returns whether a worker that was asked to end did so, with a code of its own choice.

    Scripts, and launchers without the worker in them, end with 1, 15, 130 and others then.
    """
    words = pod.termination
    asked = words is not None and words.phase is WorkerPhase.DRAINING
    return asked and pod.exit_code not in (*_CRASHES, EXIT_KILLED)


def _host_memory(job: GPUJob, pod: PodView) -> str:
    """Returns a message about host memory.

    A kubelet nearly always kills a container for its own limit, which may come from a LimitRange.
    Only without a limit does it kill the container for the node's memory.
    """
    if pod.exit_code is None:
        return f"worker {pod.rank} was not started: {pod.message}: its memory limit was exceeded"
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
    failed = {pod.rank for pod in pods if {pod.reason, pod.disruption}.intersection(NODE_LOSSES)}
    ended = {pod.rank for pod in pods if pod.exit_code is not None}
    for worker in placement.workers:
        vanished = worker.node in lost_nodes and worker.rank not in ended
        if vanished or worker.rank in failed:
            return worker.node
    return ""


def _class_of(failure: Failure) -> FailureClass:
    """Returns the failure's class.

    The worker reports a missing file as a data error. A missing relative path depends on the
    script's working directory, which is the same on every node, so it is a user error. The worker
    reports most other errors as the user's, also those of a network or a device.
    """
    kind, text = failure.failure_class, failure.message
    if kind is FailureClass.DATA and lacks_relative_file(text):
        return FailureClass.USER_ERROR
    if kind is FailureClass.USER_ERROR and comes_from_outside(text):
        return FailureClass.UNKNOWN
    return kind


def _with_need(failure: Failure) -> str:
    need = f" (needs {failure.needed_bytes} bytes)" if failure.needed_bytes else ""
    return failure.message[-600:] + need


def _failed_start(pod: PodView) -> bool:
    """Returns whether the pod failed without ever running. The node causes `OutOfcpu` and
    the like.
    """
    failed = pod.phase is PodPhase.FAILED and pod.exit_code is None
    return failed and not node_refused(pod)


def _failed(pod: PodView) -> bool:
    return pod.exit_code not in (EXIT_DONE, *_INTERRUPTED, None)


def _is_kill(pod: PodView) -> bool:
    """Returns whether the exit was SIGKILL at the end of the grace, whatever stopped the
    attempt.
    """
    return pod.exit_code == EXIT_KILLED and pod.termination is None
