"""Every reason of a job's conditions and events, with its meaning.

`reasons_page` writes docs/reference/reasons.md from it. Reasons are part of the API, because
programs compare them.
"""

from collections.abc import Mapping

from gpujob_api.report import FailureClass
from gpujob_operator.decide.model import conditions, stop_reasons
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.protection import RESUME_REFUSED, Unprotected
from gpujob_operator.decide.model.stop_reasons import STOP_RULES

Meanings = Mapping[str, str]

PENDING: Mapping[PendingReason, str] = {
    PendingReason.SUSPENDED: "`spec.suspend` is true",
    PendingReason.QUEUE_NOT_FOUND: "there is no GPUQueue of the name in `spec.queue`",
    PendingReason.INADMISSIBLE: "the queue does not admit the job's namespace or its priority",
    PendingReason.SPEC_REJECTED: "the operator starts no attempt of such a spec; the message has "
    "the field and what to do",
    PendingReason.POD_REJECTED: "a dry run of the API server refused the job's pods; the message "
    "has its words",
    PendingReason.CLAIM_NOT_FOUND: "a PersistentVolumeClaim that the job's pods mount does not "
    "exist, is being deleted, or has lost its volume; it is looked for again every 10 to 30 s",
    PendingReason.PREVIOUS_ATTEMPT_TERMINATING: "pods of an earlier attempt still end",
    PendingReason.BACKING_OFF: "the attempt ended, and the next one starts after a pause",
    PendingReason.UNSATISFIABLE: "no node could hold the job, even an idle one",
    PendingReason.NEEDS_NEW_NODE: "no node could hold the job, and an autoscaler may add other "
    "nodes; see [autoscalers](../guides/install.md#autoscalers)",
    PendingReason.OVER_QUOTA: "the quota of the queue or of its parent is in use",
    PendingReason.INSUFFICIENT_CAPACITY: "no GPU has capacity now; the message counts GPUs by "
    "what they lack",
    PendingReason.PREEMPTING: "other jobs are being stopped for this one",
}
STOPS: Meanings = {
    stop_reasons.PREEMPTED: "a job of higher priority takes the GPUs",
    stop_reasons.RECLAIMED: "another queue takes back the quota that it had lent",
    stop_reasons.MIGRATED: "the job is moved so that another one fits",
    stop_reasons.SLOWED: "co-tenants slow the job, or it slows them, more than allowed",
    stop_reasons.SUSPENDED: "`spec.suspend` was set",
    stop_reasons.NODE_RECLAIMED: "the node is being reclaimed; the stop has the node's deadline",
    stop_reasons.NODE_DRAINED: "the node is being drained; the stop has the node's deadline",
    stop_reasons.EVICTED: "somebody else deletes a pod: an eviction, a taint, a person",
    stop_reasons.GPU_UNHEALTHY: "a GPU of the job is broken",
    stop_reasons.GPU_GONE: "the node does not have a GPU of the job any more: it came back with "
    "others, or its driver lost it. No retry is used",
    stop_reasons.GPU_OVERCOMMITTED: "the GPU's jobs need more memory than it has",
    stop_reasons.MEMORY_CAP_EXCEEDED: "the job uses more GPU memory than its limit",
    stop_reasons.WORKER_ENDED: "a worker of the gang ended, so all do",
    stop_reasons.WORKER_LOST: "a pod of a worker is gone",
    stop_reasons.HUNG: "no progress for `retry.hangTimeoutSeconds`",
    stop_reasons.START_TIMEOUT: "a container of the job, such as an init container, took longer "
    "than `startTimeoutSeconds`",
    stop_reasons.POD_REJECTED: "the API server refused to create a pod (ResourceQuota, LimitRange, "
    "Pod Security, an admission webhook or policy, an invalid template), or did not create it in "
    "time",
    stop_reasons.UNSCHEDULABLE: "kube-scheduler refused the pod's node; the job avoids it for "
    "a while (`status.startRefusals`). Or kube-scheduler said nothing for `startTimeoutSeconds`",
    stop_reasons.CANNOT_START: "a kubelet could not start the pod: its image, a secret, a config "
    "map, a volume, its runtime; the node is avoided, too",
    stop_reasons.NODE_GONE: "the node went away before the pods ran",
}
FAILURES: Mapping[FailureClass, str] = {
    FailureClass.OUT_OF_MEMORY: "the GPU's memory, or the limit of a shared GPU, did not suffice",
    FailureClass.HOST_OUT_OF_MEMORY: "the container's own memory limit did not suffice",
    FailureClass.DATA: "the data could not be read",
    FailureClass.USER_ERROR: "the script or its command is wrong: not repeated before a first step",
    FailureClass.CHECKPOINT: "a checkpoint could not be written or read",
    FailureClass.NODE_LOST: "the node of a worker is lost",
    FailureClass.HUNG: "the attempt was stopped because it made no progress",
    FailureClass.UNKNOWN: "the worker ended with an exit code that says nothing more",
}
INTERRUPTED = "Interrupted"
_INTERRUPTED: Meanings = {INTERRUPTED: "the attempt was stopped, through no fault of the job"}
_ENDS: Meanings = {
    **_INTERRUPTED,
    **{kind.value: text for kind, text in FAILURES.items()},
    **{name: STOPS[name] for name, rule in STOP_RULES.items() if rule.is_refusal},
}
_FAILED_ENDS: Meanings = {**_ENDS, INTERRUPTED: "interrupted too often without progress"}

# Meanings by condition, in the order of a job's life.
CONDITIONS: Mapping[str, Meanings] = {
    conditions.ACCEPTED: {
        "Valid": "the spec is valid",
        "InvalidSpec": "the spec is not valid; the message names the field",
    },
    conditions.SCHEDULED: {
        **{reason.value: text for reason, text in PENDING.items()},
        "Placed": "an attempt has its GPUs",
    },
    conditions.RUNNING: {
        "Starting": "pods are being created or start",
        "PodNameTaken": "another pod has the name of one of the job's workers; the operator does "
        "not touch it. Delete that pod",
        "WorkersRunning": "all workers run",
        "NodeUnreachable": "a node has not answered for `nodeLostSeconds`",
        **STOPS,
        "NodeGone": "a node of the attempt is gone",
        **_ENDS,
        "Finished": "all workers ended with 0",
    },
    conditions.SUSPENDED: {
        "Suspended": "the job is suspended and reserves no GPU",
        "Resumed": "`spec.suspend` is false again",
    },
    conditions.GPU_PRESSURE: {
        "GPUOvercommitted": "more memory of a GPU of the job is used than it has",
        "Fits": "the GPU has enough memory for its jobs again",
    },
    conditions.SLOWED: {
        "CoTenants": "co-tenants slow the job more than `sharing.maxSlowdownPercent` and 5 points",
        "Yields": "the job yields to a service for more time than `sharing.maxSlowdownPercent` and "
        "5 points allow, or for the most that a job yields",
        "WithinLimit": "co-tenants slow the job no more than that",
    },
    conditions.YIELDING: {
        "ServiceLatency": "requests of a service on the job's GPU need more than 90 % of their "
        "objective, so the job leaves the GPU idle for a share of its time",
        "Ended": "they need less than 70 %, or the service is gone",
    },
    conditions.UNTUNED: {
        "NoReports": "no worker reports: the job is measured from outside",
        "Skipped": "the worker does nothing in this image, such as one with too old a torch",
        "NoSteps": "the job ended without a step of an optimizer of torch, and without three calls "
        "of a model",
    },
    conditions.UNPROTECTED: {
        Unprotected.NO_DURABLE_PLACE.value: "no persistent volume keeps the job's checkpoints: "
        "create the job again with `checkpoint.volumeClaimName`",
        Unprotected.NOT_RESUMABLE.value: "the worker reports that no checkpoint brings the run "
        "back exactly, or that nothing matches `checkpoint.path` 5 minutes after the first step; "
        "the message has its reason",
    },
    conditions.EDIT_REJECTED: {
        PendingReason.QUEUE_NOT_FOUND.value: "there is no GPUQueue of the name in `spec.queue`",
        PendingReason.INADMISSIBLE.value: "the queue in `spec.queue` does not admit the job; "
        "the attempt uses the quota of the queue that admitted it",
        PendingReason.OVER_QUOTA.value: "the queue in `spec.queue` has no quota for the attempt",
        "PriorityCapped": "`spec.priority` is beyond what the queue gives, and counts as the "
        "nearest that it gives",
    },
    conditions.SUCCEEDED: {
        "InProgress": "not finished yet",
        "Completed": "every worker ended with 0",
        **_FAILED_ENDS,
    },
    conditions.FAILED: _FAILED_ENDS,
    conditions.FINISHED: {"Succeeded": "the job succeeded", "Failed": "the job failed"},
}
# Of a GPUService.
SERVICE_CONDITIONS: Mapping[str, Meanings] = {
    "Accepted": {
        "Valid": "the spec is valid",
        "InvalidSpec": "no replica is created of this spec; the message names the field. Those of "
        "an earlier spec go on",
    },
    "Ready": {
        "ReplicasReady": "as many replicas as wanted answer requests",
        "ReplicasStarting": "fewer do; the message has the reason of one of the others. True while "
        "at least one answers",
        "ReplicasFailing": "fewer do, because replicas end by themselves",
        "RequestsFailing": "the model failed for more than half of the requests of the last "
        "minute, at least 20, and still does for more than half of those since. The replicas go "
        "on, because a restart would not help",
        "ReplicaRejected": "fewer do, because the spec was refused (`Accepted`), or the API server "
        "refused a replica. True while at least one answers",
        "ServiceRejected": "there is no Service in front of the replicas, because the API server "
        "refused it or another one has its name",
        "GateNotReady": "no replica answers, and no gate holds requests: the message has the "
        "reason why its pod does not run",
        "ScaledToZero": "no replica runs, because there was no request for "
        "`spec.replicas.stopAfterSeconds`; the next request starts one",
        "Parked": "no replica answers, because there was no request for "
        "`spec.replicas.parkAfterSeconds`; the next request wakes one",
        "Suspended": "`spec.suspend` is true",
    },
    "Progressing": {
        "Updating": "replicas of the newest revision are being started",
        "Complete": "all replicas have the newest revision",
        "Stuck": "they have not all started within 10 minutes",
    },
    "BackendChosen": {
        "Given": "`spec.optimize.backend` names it",
        "Measuring": "backends are measured once a replica answers",
        "Measured": "the backend in `status.choice` was measured to be the cheapest one",
        "MeasurementFailed": "the measurement ended without a result; the model runs as written",
    },
}
SERVICE_EVENTS: Meanings = {
    "ReplicaEnded": "a replica ended by itself; the message has the pause before the next one",
    "BackendChosen": "which backend was chosen, and how many were refused",
    "MeasurementFailed": "the measurement of backends ended without a result",
}
EVENTS: Meanings = {
    **{reason.value: text for reason, text in PENDING.items()},
    "QueueChanged": "the queue that `spec.queue` names now admitted the attempt that runs",
    "PriorityCapped": "`spec.priority` is beyond what the queue of the running attempt gives",
    "Placed": "GPUs are reserved for an attempt: which, how much of each, and what that rests on",
    "Tuning": "an attempt begins to try settings: training stands still meanwhile; once for a job",
    "Tuned": "which settings are in force, and how much faster steps are with them",
    "Recommends": "which settings were measured to be faster, where `optimize.mode: Recommend` "
    "applies none",
    "ReservationMeasured": "the measured peak took the place of the first reservation",
    "Resumed": "the step after which an attempt goes on",
    "RestartedFromBeginning": "an attempt after the first starts from the beginning; the message "
    "has the number of steps that are lost",
    RESUME_REFUSED: "an attempt found that its checkpoint did not bring the run back exactly; "
    "it counts as no failure",
    "CheckpointCommitted": "the first checkpoint that an attempt saved; the newest one is in "
    "`status.checkpoint`",
    "YieldsToService": "the job leaves its GPU idle for a share of its time, for a service on it; "
    "once for a job",
    "Parked": "a replica of a service moved its weights to the memory of the host, and reserves "
    "what it still uses",
    "Woken": "a parked replica reserves all of its memory again",
    **{f"Stopping{name}": text for name, text in STOPS.items()},
    **{f"Attempt{name}": f"{text}; tried again" for name, text in _ENDS.items()},
    "Succeeded": "the job succeeded",
    "Failed": "the job failed and is not tried again",
}
