"""Decides whether a worker that ended with 0 had finished its work.

Scripts that save on SIGTERM end with 0 wherever they are, and so do trainers. The exit code is
therefore the last evidence. Evidence of an end from outside comes from the worker's pod, the stop
of its attempt, its node, and its last report. Against any of these, only the report of the last
step proves that the work is done. Without them, a report that breaks off before that step disproves
it.

A worker without such evidence when its end was first seen was done, and stays so (see
`with_done_ranks`). Times prove nothing here, because they come from several clocks.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime
from math import inf

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, StopReason
from gpujob_api.report import Report, WorkerPhase
from gpujob_api.settings import EXIT_DONE, Task
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.model.workers import done_ranks

OOM_KILLED = "OOMKilled"
# The reason for a pod that the operator or somebody else deleted, without a word from Kubernetes.
DELETED = "deleted"
# Reasons in Kubernetes for a node that was lost, or that restarted and found its containers dead.
# Kubernetes' garbage collector fails the pods of a node that is gone right before it deletes them.
# containerd gives the reason Unknown and the exit code 255.
NODE_LOSSES = ("ContainerStatusUnknown", "DeletionByPodGC", "NodeLost", "Unknown")
# Pod reasons of the kubelet for a node that could not run the pod, which is not the job's fault.
_NODE_REFUSALS = (
    "Evicted",
    "NodeAffinity",
    "NodeShutdown",
    "OutOf",
    "Preempting",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
    *NODE_LOSSES,
)
# How long a script may run after its last words, which are written every few seconds.
UNREPORTED_SECONDS = 60.0
# The same after a report that was received, in addition to the report's age.
UNRECEIVED_SECONDS = 20.0
# The kubelet's reasons for ending a pod because of the pod's own limits.
OWN_LIMITS = ("DeadlineExceeded",)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts of an attempt that its pods do not show."""

    stop: StopReason | None = None
    # The attempt's nodes that are about to go or gone. They end pods without a deletion.
    leaving_nodes: frozenset[str] = frozenset()
    # The newest report of any of its workers.
    report: Report | None = None
    # Age of the report. The script may have run this long without sending another one.
    report_age_seconds: float = inf


def circumstances_of(job: GPUJob, inputs: JobInputs, now: datetime) -> Circumstances:
    # An operator that was away may see an end only when the node is gone, with its sign.
    leaving = inputs.lost_nodes | frozenset(
        site.node
        for site in inputs.sites
        if site.facts is not None
        and site.facts.notice is not None
        and site.facts.notice.kind.stops_jobs
    )
    newest = inputs.report
    if newest is None:
        return Circumstances(job.status.stop, leaving)
    age_seconds = max(0.0, (now - newest.received_at).total_seconds())
    return Circumstances(job.status.stop, leaving, newest.report, age_seconds)


def outside_reason(pod: PodView) -> str:
    """Returns why Kubernetes or a person ended the pod, by its object, or "".

    The reason counts in any phase. Since Kubernetes 1.27, a pod that the kubelet ended and whose
    containers ended with 0 has Succeeded.
    """
    if pod.reason.startswith((*_NODE_REFUSALS, *OWN_LIMITS)) or _is_ended_whole(pod):
        return pod.reason
    if pod.disruption:
        return pod.disruption
    return DELETED if pod.deletion_at is not None else ""


def node_refused(pod: PodView) -> bool:
    """Returns whether the pod's reason belongs to its node, whatever else is known."""
    whole = _is_ended_whole(pod) and pod.reason not in OWN_LIMITS
    return whole or pod.reason.startswith(_NODE_REFUSALS)


def _is_ended_whole(pod: PodView) -> bool:
    """Returns whether a kubelet or a controller ended the pod, or did not admit it, for any reason.

    A restarted kubelet admits its pods anew, and may refuse one that ran. Of a pod that Succeeded
    only known reasons count, because kubelets of other projects give one for any end.
    """
    return pod.phase is PodPhase.FAILED and pod.reason_is_of_pod


def is_done(pod: PodView, around: Circumstances) -> bool:
    """Returns whether the worker ended because its work was done."""
    if pod.exit_code != EXIT_DONE:
        return False
    words = _last_report(pod, around)
    if words is not None and _made_last_step(words):
        return True
    if words is not None and words.phase is WorkerPhase.DRAINING:
        return False
    if pod.reason == OOM_KILLED and (words is None or words.phase is not WorkerPhase.FINISHED):
        # One of its processes other than the first was killed, and the first went on, as a shell
        # does.
        return False
    if words is not None and _broke_off(words, _unknown_seconds(pod, around)):
        return False
    return not _is_ended_from_outside(pod, words, around)


def broke_off_by_itself(pod: PodView, around: Circumstances) -> bool:
    """Returns whether the worker ended with 0 before its last step and nothing asked it to."""
    words = _last_report(pod, around)
    if pod.exit_code != EXIT_DONE or words is None or words.phase is WorkerPhase.DRAINING:
        return False
    broke_off = _broke_off(words, _unknown_seconds(pod, around))
    return broke_off and not _is_ended_from_outside(pod, words, around)


def _unknown_seconds(pod: PodView, around: Circumstances) -> float:
    """Returns how long the script may have run after its last words."""
    received_only = pod.termination is None
    return UNRECEIVED_SECONDS + around.report_age_seconds if received_only else UNREPORTED_SECONDS


def _is_ended_from_outside(pod: PodView, words: Report | None, around: Circumstances) -> bool:
    return bool(outside_reason(pod)) or _is_ended_by_stop(pod, words, around)


def _last_report(pod: PodView, around: Circumstances) -> Report | None:
    """Returns the worker's last report.

    It is the termination message. A script may have overwritten that, and then the newest report of
    this worker counts.
    """
    if pod.termination is not None or around.report is None:
        return pod.termination
    report = around.report
    return report if (report.attempt, report.rank) == (pod.attempt, pod.rank) else None


def _announced_steps(words: Report) -> int | None:
    """Returns the number of steps after which the script ends, or None if it is not certain.

    Another loop may follow the one whose length a script that only answers reports.
    """
    return None if words.task is Task.INFERENCE else words.steps_total


def _made_last_step(words: Report) -> bool:
    total = _announced_steps(words)
    return total is not None and words.step >= total > 0


def _broke_off(words: Report, unknown_seconds: float) -> bool:
    """Returns whether the script left long before its announced steps, in a way unseen by the
    worker.

    It may have made steps for `unknown_seconds` after these words.

    Examples are `os._exit(0)` in its own signal handler, and a shell that ends with 0 after it. A
    script that stops early on purpose reports that it finished.
    """
    says_how = words.phase is WorkerPhase.FINISHED or words.failure is not None
    total = _announced_steps(words)
    if says_how or total is None or words.current is None:
        return False
    left_seconds = (total - words.step) * words.current.step_seconds
    return left_seconds > unknown_seconds


def _is_ended_by_stop(pod: PodView, words: Report | None, around: Circumstances) -> bool:
    """Returns whether a stop, or a node that leaves or is gone, may have ended the worker.

    A node that goes sends SIGTERM to all processes, and its kubelet may have had no time to report
    it. The reply to a report announces the stop of an attempt before any pod is deleted, so a
    worker that does not report that it finished may have received it. A pod that failed although
    its worker ended with 0 was ended by its kubelet.
    """
    rule = rule_of(around.stop)
    if rule.bounds_grace or pod.node in around.leaving_nodes:
        return True
    if around.stop is None or rule.worker_ended_first:
        return False
    finished = words is not None and words.phase is WorkerPhase.FINISHED
    return pod.phase is PodPhase.FAILED or not finished


def known_done(job: GPUJob, pods: Iterable[PodView], around: Circumstances) -> Set[int]:
    """Returns the ranks that are done, as recorded earlier or as their pods show now."""
    return done_ranks(job.status) | {pod.rank for pod in pods if is_done(pod, around)}


def with_done_ranks(status: GPUJobStatus, ranks: Set[int]) -> GPUJobStatus:
    """Returns the status that records which workers of a gang are done while others continue.

    The record outlives their pods and this process. Returns the same object if nothing changes.
    """
    placement = status.placement
    if placement is None or len(placement.workers) == 1 or ranks <= done_ranks(status):
        return status
    workers = tuple(
        changed(worker, done=True) if worker.rank in ranks and not worker.done else worker
        for worker in placement.workers
    )
    return changed(status, placement=changed(placement, workers=workers))
