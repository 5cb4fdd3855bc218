"""Why a running attempt is stopped, with one row for the consequence of each reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import StopReason
from gpujob_api.report import FailureClass

# Stopped for another job. See `preemption`.
PREEMPTED = "Preempted"
RECLAIMED = "Reclaimed"
MIGRATED = "Migrated"
SLOWED = "Slowed"
# Stopped for the user, the node or the GPU.
SUSPENDED = "Suspended"
NODE_RECLAIMED = "NodeReclaimed"
NODE_DRAINED = "NodeDrained"
# A worker's pod is deleted by an eviction, a drain, a taint, or a person.
EVICTED = "Evicted"
GPU_UNHEALTHY = "GPUUnhealthy"
# The node exists but no longer has the GPU.
GPU_GONE = "GPUGone"
GPU_OVERCOMMITTED = "GPUOvercommitted"
# Stopped for a reason of the job itself.
MEMORY_CAP_EXCEEDED = "MemoryCapExceeded"
WORKER_ENDED = "WorkerEnded"
WORKER_LOST = "WorkerLost"
HUNG = "Hung"
START_TIMEOUT = "StartTimeout"
# The API server, kube-scheduler or a kubelet did not let a pod start.
POD_REJECTED = "PodRejected"
UNSCHEDULABLE = "Unschedulable"
CANNOT_START = "CannotStart"
# A node on which the attempt was to start is gone.
NODE_GONE = "NodeGone"


@dataclass(frozen=True, slots=True)
class StopRule:
    """The consequence of a stop.

    By default it interrupts the attempt through no fault of the job.
    """

    # Stopped for another job. Such stops are counted and bounded.
    for_others: bool = False
    # The stop is a failure of the job, of this class.
    failure: FailureClass | None = None
    # The stop follows the end of a worker. Any other stop came first and explains later ends.
    is_consequence: bool = False
    # A worker ended before the stop, so no signal of the operator killed it.
    worker_ended_first: bool = False
    # The attempt could not start. This is neither a failure nor an interruption, and has its own
    # counter.
    is_refusal: bool = False
    # The user requested the stop, so there is no warning.
    asked_for: bool = False
    # The deadline is set from outside and shortens the pods' grace.
    bounds_grace: bool = False


STOP_RULES: Mapping[str, StopRule] = {
    PREEMPTED: StopRule(for_others=True),
    RECLAIMED: StopRule(for_others=True),
    MIGRATED: StopRule(for_others=True),
    SLOWED: StopRule(for_others=True),
    SUSPENDED: StopRule(asked_for=True),
    NODE_RECLAIMED: StopRule(bounds_grace=True),
    NODE_DRAINED: StopRule(bounds_grace=True),
    EVICTED: StopRule(),
    GPU_UNHEALTHY: StopRule(),
    GPU_GONE: StopRule(),
    GPU_OVERCOMMITTED: StopRule(),
    WORKER_ENDED: StopRule(is_consequence=True, worker_ended_first=True),
    WORKER_LOST: StopRule(is_consequence=True),
    MEMORY_CAP_EXCEEDED: StopRule(failure=FailureClass.OUT_OF_MEMORY),
    HUNG: StopRule(failure=FailureClass.HUNG),
    START_TIMEOUT: StopRule(failure=FailureClass.UNKNOWN),
    POD_REJECTED: StopRule(is_refusal=True),
    UNSCHEDULABLE: StopRule(is_refusal=True),
    CANNOT_START: StopRule(is_refusal=True),
    NODE_GONE: StopRule(is_consequence=True),
}
_OTHER = StopRule()


def rule_for(reason: str) -> StopRule:
    """Returns the rule of the reason, or the default rule if the reason is unknown."""
    return STOP_RULES.get(reason, _OTHER)


def rule_of(stop: StopReason | None) -> StopRule:
    """Returns the rule of the stop, or the default rule without a stop."""
    return rule_for(stop.reason) if stop is not None else _OTHER
