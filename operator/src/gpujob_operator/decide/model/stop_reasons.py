"""Why a running attempt is stopped, and what follows from each reason: one row a reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import StopReason
from gpujob_api.report import FailureClass

# For another job's sake: see `preemption`.
PREEMPTED = "Preempted"
RECLAIMED = "Reclaimed"
MOVED = "Moved"
SLOWED = "Slowed"
# For the user's, the node's or the GPU's sake.
SUSPENDED = "Suspended"
NODE_RECLAIMED = "NodeReclaimed"
GPU_UNHEALTHY = "GPUUnhealthy"
GPU_OVERFULL = "GPUOverfull"
# The job's own.
WORKER_ENDED = "WorkerEnded"
WORKER_LOST = "WorkerLost"
HUNG = "Hung"
START_TIMEOUT = "StartTimeout"


@dataclass(frozen=True, slots=True)
class StopRule:
    """By default the attempt was interrupted, through no fault of the job."""

    # Another job's sake: the stop is counted, and bounded.
    for_others: bool = False
    # The stop is a failure of the job, of this class.
    failure: FailureClass | None = None
    # It follows from a worker's end; any other stop was announced, and explains what comes after.
    is_consequence: bool = False
    # A worker ended before the stop, so that no signal of ours killed it.
    worker_ended_first: bool = False


STOP_RULES: Mapping[str, StopRule] = {
    PREEMPTED: StopRule(for_others=True),
    RECLAIMED: StopRule(for_others=True),
    MOVED: StopRule(for_others=True),
    SLOWED: StopRule(for_others=True),
    SUSPENDED: StopRule(),
    NODE_RECLAIMED: StopRule(),
    GPU_UNHEALTHY: StopRule(),
    GPU_OVERFULL: StopRule(),
    WORKER_ENDED: StopRule(is_consequence=True, worker_ended_first=True),
    WORKER_LOST: StopRule(is_consequence=True),
    HUNG: StopRule(failure=FailureClass.HUNG),
    START_TIMEOUT: StopRule(failure=FailureClass.UNKNOWN),
}
_OTHER = StopRule()


def rule_for(reason: str) -> StopRule:
    """The default one for a reason that nobody knows."""
    return STOP_RULES.get(reason, _OTHER)


def rule_of(stop: StopReason | None) -> StopRule:
    """The default one without a stop."""
    return rule_for(stop.reason) if stop is not None else _OTHER
