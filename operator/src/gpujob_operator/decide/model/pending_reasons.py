"""Why a pending job waits: the reasons of its Scheduled condition. They are part of the API."""

from enum import StrEnum


class PendingReason(StrEnum):
    SUSPENDED = "Suspended"
    QUEUE_NOT_FOUND = "QueueNotFound"
    OLD_ATTEMPT_ENDING = "OldAttemptEnding"
    WAITING_FOR_RETRY = "WaitingForRetry"
    # It never fits on the GPUs that there are.
    IMPOSSIBLE = "Impossible"
    OVER_QUOTA = "OverQuota"
    NO_ROOM = "NoRoom"
    # Other jobs are ending for it.
    MAKING_ROOM = "MakingRoom"
