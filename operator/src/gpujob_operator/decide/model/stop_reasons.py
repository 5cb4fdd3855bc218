"""Why a running attempt is stopped, and the consequence of each reason: one row for each."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import StopReason
from gpujob_api.report import FailureClass

# Stopped for another job: see `preemption`.
PREEMPTED = "Preempted"
RECLAIMED = "Reclaimed"
MIGRATED = "Migrated"
SLOWED = "Slowed"
# Stopped for the user, the node or the GPU.
SUSPENDED = "Suspended"
NODE_RECLAIMED = "NodeReclaimed"
NODE_DRAINED = "NodeDrained"
# Somebody else deletes a worker's pod: an eviction, a drain, a taint, or a person.
EVICTED = "Evicted"
GPU_UNHEALTHY = "GPUUnhealthy"
# The node is there, and does not have the GPU any more.
GPU_GONE = "GPUGone"
GPU_OVERCOMMITTED = "GPUOvercommitted"
# Stopped for a reason of the job itself.
MEMORY_CAP_EXCEEDED = "MemoryCapExceeded"
WORKER_ENDED = "WorkerEnded"
WORKER_LOST = "WorkerLost"
HUNG = "Hung"
START_TIMEOUT = "StartTimeout"
# Somebody else's: the API server, kube-scheduler or a kubelet did not let a pod start.
POD_REJECTED = "PodRejected"
UNSCHEDULABLE = "Unschedulable"
CANNOT_START = "CannotStart"
# A node is gone on which the attempt was to start.
NODE_GONE = "NodeGone"


@dataclass(frozen=True, slots=True)
class StopRule:
    """The consequence of a stop. By default the attempt was interrupted, through no fault of the
    job.
    """

    # Stopped for another job: such stops are counted and bounded.
    for_others: bool = False
    # The stop is a failure of the job, of this class.
    failure: FailureClass | None = None
    # The stop follows the end of a worker. Any other stop came first, and explains the ends after
    # it.
    is_consequence: bool = False
    # A worker ended before the stop, so no signal of the operator killed it.
    worker_ended_first: bool = False
    # The attempt could not start: neither a failure nor an interruption, and counted apart.
    is_refusal: bool = False
    # The user asked for it: nothing to be warned of.
    asked_for: bool = False
    # The stop's deadline is somebody else's, and shortens the grace of the pods.
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
    """The rule of the reason; the default rule for an unknown reason."""
    return STOP_RULES.get(reason, _OTHER)


def rule_of(stop: StopReason | None) -> StopRule:
    """The rule of the stop; the default rule without a stop."""
    return rule_for(stop.reason) if stop is not None else _OTHER
