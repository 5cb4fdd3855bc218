"""What a person can do about a job that waits or failed: one sentence for each reason.

Reasons whose message already ends with the next step have none here.
"""

from collections.abc import Mapping

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.report import FailureClass
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.pending_reasons import PendingReason

# `{name}`, `{namespace}` and `{queue}` are those of the job.
OF_PENDING: Mapping[PendingReason, str] = {
    PendingReason.SUSPENDED: "kubectl gpujob resume {name} -n {namespace}",
    PendingReason.QUEUE_NOT_FOUND: "name an existing queue in spec.queue (kubectl gpujob queue "
    "lists them), or have GPUQueue {queue} created",
    PendingReason.INADMISSIBLE: "name another queue in spec.queue (kubectl gpujob queue lists "
    "them), or have the job admitted by GPUQueue {queue}",
    PendingReason.SPEC_REJECTED: "",
    PendingReason.POD_REJECTED: "",
    PendingReason.CLAIM_NOT_FOUND: "create the claim: kubectl get pvc -n {namespace} lists the "
    "existing ones",
    PendingReason.PREVIOUS_ATTEMPT_TERMINATING: "nothing to do: the next attempt starts when "
    "the pods of the previous one have ended",
    PendingReason.BACKING_OFF: "nothing to do: the next attempt starts by itself",
    PendingReason.UNSATISFIABLE: "request less (kubectl gpujob gpus shows what the cluster has), "
    "or add a node",
    PendingReason.NEEDS_NEW_NODE: "nothing to do if an autoscaler adds nodes; otherwise request "
    "less, or add a node",
    PendingReason.OVER_QUOTA: "wait for jobs of the queue (kubectl gpujob queue {queue}), or have "
    "its quota raised",
    PendingReason.INSUFFICIENT_CAPACITY: "wait: kubectl gpujob simulate {name} -n {namespace} "
    "shows when it starts",
    PendingReason.PREEMPTING: "nothing to do: the job starts when the stopped ones have ended",
}
# For a job that was measured to need more memory than any GPU has, or that names models.
_LESS_MEMORY = "create the job again with a smaller batch, or add a node with more GPU memory"
_OTHER_MODEL = (
    "request less or another model (kubectl gpujob gpus shows what the cluster has), or add a node"
)
# Added for a job whose limit decides, and for one of which nothing was measured.
_LOWER_LIMIT = ". A lower spec.gpu.memory, its limit, may start it sooner"
_LIMIT = (
    ". If it needs less than a whole GPU, spec.sharing.mode Shared with spec.gpu.memory as its "
    "limit may start it sooner"
)
OF_FAILED: Mapping[FailureClass, str] = {
    FailureClass.OUT_OF_MEMORY: "run it again with a smaller batch, or on GPUs with more memory",
    FailureClass.HOST_OUT_OF_MEMORY: "run it again with a higher memory limit of the container",
    FailureClass.DATA: "check the data and their mounts, then run it again: kubectl gpujob rerun "
    "{name} -n {namespace}",
    FailureClass.USER_ERROR: "correct the script or its command, then run it again",
    FailureClass.CHECKPOINT: "check the claim's free space and rights, then run it again: kubectl "
    "gpujob rerun {name} -n {namespace}",
    FailureClass.NODE_LOST: "run it again: kubectl gpujob rerun {name} -n {namespace}",
    FailureClass.HUNG: "find where it hangs (kubectl gpujob logs {name} -n {namespace}). If its "
    "start, a step or an evaluation takes longer, raise spec.retry.hangTimeoutSeconds of the next "
    "job",
    FailureClass.UNKNOWN: "read the end of its log: kubectl gpujob logs {name} -n {namespace}",
}


def next_step(job: GPUJob) -> str:
    """Returns what a person can do about the job now, or "" if there is nothing to add."""
    status = job.status
    text = ""
    if status.phase is JobPhase.PENDING:
        scheduled = find(status, SCHEDULED)
        reasons = {reason.value: reason for reason in PendingReason}
        reason = reasons.get(scheduled.reason) if scheduled is not None else None
        text = OF_PENDING[reason] if reason is not None else ""
        if reason is PendingReason.INSUFFICIENT_CAPACITY:
            text += _with_less_memory(job)
        elif reason is PendingReason.UNSATISFIABLE:
            text = _of_unsatisfiable(job) or text
    elif status.phase is JobPhase.FAILED and status.failure is not None:
        text = OF_FAILED[status.failure.failure_class]
    metadata = job.metadata
    return text.format(name=metadata.name, namespace=metadata.namespace, queue=job.spec.queue)


def _of_unsatisfiable(job: GPUJob) -> str:
    failure = job.status.failure
    if failure is not None and failure.failure_class is FailureClass.OUT_OF_MEMORY:
        return _LESS_MEMORY
    return _OTHER_MODEL if job.spec.gpu.models else ""


def _with_less_memory(job: GPUJob) -> str:
    """Returns how the job may start with less memory, or "".

    The request decides only as a limit. A measured job reserves what it was measured to use.
    """
    mode = job.spec.sharing.mode
    if mode is SharingMode.SHARED and job.spec.gpu.memory is not None:
        return _LOWER_LIMIT
    may_share = mode is not SharingMode.EXCLUSIVE and job.spec.gpus_per_worker == 1
    return _LIMIT if may_share and job.status.measurement is None else ""
