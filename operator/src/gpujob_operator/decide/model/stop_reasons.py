"""Why a running attempt is stopped, and what follows from each reason."""

from gpujob_api.report import FailureClass

# Stops of one job for the sake of others: see `preemption`.
PREEMPTED = "Preempted"
RECLAIMED = "Reclaimed"
MOVED = "Moved"
SLOWED = "Slowed"
FOR_OTHERS = (PREEMPTED, RECLAIMED, MOVED, SLOWED)
# Stops that are the job's own failure, not an interruption.
FAILED_STOPS = {
    "Hung": FailureClass.HUNG,
    "StartTimeout": FailureClass.UNKNOWN,
}
# Stops that follow from a worker's end; any other was announced, and explains what comes after it.
CONSEQUENCES = ("WorkerEnded", "WorkerLost")
