"""Why a pending job waits: the reasons of its Scheduled condition, which are part of the API."""

from enum import StrEnum


class PendingReason(StrEnum):
    SUSPENDED = "Suspended"
    QUEUE_NOT_FOUND = "QueueNotFound"
    # The queue does not admit the job's namespace or its priority.
    INADMISSIBLE = "Inadmissible"
    # The operator starts no attempt of this spec.
    SPEC_REJECTED = "SpecRejected"
    # A dry run of the API server refused the job's pods.
    POD_REJECTED = "PodRejected"
    # A claim that the job's pods mount does not exist.
    CLAIM_NOT_FOUND = "ClaimNotFound"
    PREVIOUS_ATTEMPT_TERMINATING = "PreviousAttemptTerminating"
    BACKING_OFF = "BackingOff"
    # The job can never fit on the GPUs of the cluster.
    UNSATISFIABLE = "Unsatisfiable"
    # The same, but an autoscaler may add other nodes.
    NEEDS_NEW_NODE = "NeedsNewNode"
    OVER_QUOTA = "OverQuota"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    # Other jobs are being stopped for this job.
    PREEMPTING = "Preempting"


# Reasons that neither time nor other jobs end.
BLOCKING_REASONS = frozenset(
    {
        PendingReason.QUEUE_NOT_FOUND,
        PendingReason.INADMISSIBLE,
        PendingReason.SPEC_REJECTED,
        PendingReason.POD_REJECTED,
        PendingReason.CLAIM_NOT_FOUND,
        PendingReason.UNSATISFIABLE,
    }
)
# Reasons that no turn in the order ends. Messages with them have no position.
NO_TURN = BLOCKING_REASONS | {PendingReason.SUSPENDED, PendingReason.NEEDS_NEW_NODE}
