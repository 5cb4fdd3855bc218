"""Whether a worker that ended with 0 was done with its work.

Scripts that save on SIGTERM, and trainers too, end with 0 wherever they are. So the exit code is
asked last. What ended a worker from outside is known by its pod, by the stop of its attempt, by its
node, and by the last report of the worker. Against any of them only the report of the last step
proves an end; without them, a report that breaks off before that step disproves it. A worker of
which none of them was known when it was first seen to have ended was done, and stays so: see
`with_done_ranks`. Times prove nothing here: they come from several clocks.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime
from math import inf

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, StopReason
from gpujob_api.report import Report, WorkerPhase
from gpujob_api.settings import EXIT_DONE
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.stop_reasons import rule_of
from gpujob_operator.decide.model.workers import done_ranks

OOM_KILLED = "OOMKilled"
# Pod reasons in Kubernetes for a node that was lost, or restarted and found its containers dead.
# Kubernetes' garbage collector lets the pods of a node that is gone fail right before they go.
NODE_LOSSES = ("ContainerStatusUnknown", "DeletionByPodGC", "NodeLost")
# Pod reasons of the kubelet for "this node could not run the pod", which is not the job's fault.
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
# So much may a script do after the last report, which is written every few seconds.
UNREPORTED_SECONDS = 60.0
# The kubelet's reasons for a pod that it ends because of the pod's own limits.
OWN_LIMITS = ("DeadlineExceeded",)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts of an attempt beside its pods."""

    stop: StopReason | None = None
    # Its nodes that are about to go: they end pods that nobody deletes.
    leaving_nodes: frozenset[str] = frozenset()
    # The newest one that came, of one of its workers.
    report: Report | None = None
    # For how long it is known; the script may have gone on for so long without another one.
    report_age_seconds: float = inf


def circumstances_of(job: GPUJob, inputs: JobInputs, now: datetime) -> Circumstances:
    leaving = frozenset(
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
    """What Kubernetes or a person ended the pod for, as its object says; "" if nothing did.

    The reason counts in any phase: since Kubernetes 1.27 a pod that the kubelet ended, and whose
    containers ended with 0, has Succeeded.
    """
    if pod.reason.startswith((*_NODE_REFUSALS, *OWN_LIMITS)):
        return pod.reason
    if pod.disruption:
        return pod.disruption
    return "deleted" if pod.deletion_at is not None else ""


def node_refused(pod: PodView) -> bool:
    """Whether the pod's reason is one of its node, whatever else is known."""
    return pod.reason.startswith(_NODE_REFUSALS)


def is_done(pod: PodView, around: Circumstances) -> bool:
    """Whether the worker's end is that of its work."""
    if pod.exit_code != EXIT_DONE:
        return False
    words = _last_report(pod, around)
    if words is not None and _made_last_step(words):
        return True
    if words is not None and words.phase is WorkerPhase.DRAINING:
        return False
    if pod.reason == OOM_KILLED and (words is None or words.phase is not WorkerPhase.FINISHED):
        # Of its processes not the first, which went on, as a shell does.
        return False
    age_seconds = 0.0 if pod.termination is not None else around.report_age_seconds
    if words is not None and _broke_off(words, age_seconds):
        return False
    return not (outside_reason(pod) or _is_ended_by_stop(pod, words, around))


def _last_report(pod: PodView, around: Circumstances) -> Report | None:
    """The termination message is the last report; a script may have written another one over it."""
    if pod.termination is not None or around.report is None:
        return pod.termination
    report = around.report
    return report if (report.attempt, report.rank) == (pod.attempt, pod.rank) else None


def _made_last_step(words: Report) -> bool:
    return words.steps_total is not None and words.step >= words.steps_total > 0


def _broke_off(words: Report, age_seconds: float) -> bool:
    """Whether the script left long before the steps that it announced, and by no end that the
    worker sees: `os._exit(0)` in a signal handler of its own, or in a shell that ends with 0 after
    it. One that stops early says that it finished."""
    says_how = words.phase is WorkerPhase.FINISHED or words.failure is not None
    if says_how or words.steps_total is None or words.current is None:
        return False
    left_seconds = (words.steps_total - words.step) * words.current.step_seconds
    return left_seconds > UNREPORTED_SECONDS + age_seconds


def _is_ended_by_stop(pod: PodView, words: Report | None, around: Circumstances) -> bool:
    """A node that goes sends SIGTERM to all processes, and its kubelet may have had no time to say
    so. The stop of an attempt comes with the reply to a report too, before any pod is deleted: a
    worker that does not say that it finished may have heard of it. A pod that has failed although
    its worker ended with 0 was ended by its kubelet."""
    rule = rule_of(around.stop)
    if rule.bounds_grace or pod.node in around.leaving_nodes:
        return True
    if around.stop is None or rule.worker_ended_first:
        return False
    finished = words is not None and words.phase is WorkerPhase.FINISHED
    return pod.phase is PodPhase.FAILED or not finished


def known_done(job: GPUJob, pods: Iterable[PodView], around: Circumstances) -> Set[int]:
    """The ranks that are done: of which it was seen before, and whose pods show it now."""
    return done_ranks(job.status) | {pod.rank for pod in pods if is_done(pod, around)}


def with_done_ranks(status: GPUJobStatus, ranks: Set[int]) -> GPUJobStatus:
    """The status that remembers which workers of a gang are done, while others go on: whatever
    becomes of their pods, and of this process. The same object if it knew."""
    placement = status.placement
    if placement is None or len(placement.workers) == 1 or ranks <= done_ranks(status):
        return status
    workers = tuple(
        changed(worker, done=True) if worker.rank in ranks and not worker.done else worker
        for worker in placement.workers
    )
    return changed(status, placement=changed(placement, workers=workers))
