"""Why a pending job waits: the reasons of its Scheduled condition. The reasons are part
of the API.
"""

from enum import StrEnum


class PendingReason(StrEnum):
    SUSPENDED = "Suspended"
    QUEUE_NOT_FOUND = "QueueNotFound"
    # The queue does not admit the job's namespace or its priority.
    REFUSED_BY_QUEUE = "RefusedByQueue"
    # The operator starts no attempt of such a spec.
    SPEC_REFUSED = "SpecRefused"
    # A dry run of the API server refused the job's pods.
    POD_REFUSED = "PodRefused"
    # A claim that the job's pods mount does not exist.
    CLAIM_NOT_FOUND = "ClaimNotFound"
    OLD_ATTEMPT_ENDING = "OldAttemptEnding"
    WAITING_FOR_RETRY = "WaitingForRetry"
    # The job can never fit on the GPUs of the cluster.
    IMPOSSIBLE = "Impossible"
    # The same, where an autoscaler may add other nodes.
    NEEDS_NEW_NODE = "NeedsNewNode"
    OVER_QUOTA = "OverQuota"
    NO_ROOM = "NoRoom"
    # Other jobs are being stopped for this job.
    MAKING_ROOM = "MakingRoom"
