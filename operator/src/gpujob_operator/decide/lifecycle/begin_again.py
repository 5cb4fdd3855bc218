"""An attempt that another process placed and that has no pod begins again under the next number.

Whether a pod of it was ever created is not known: the process may have ended before, or somebody
may have removed the pod by force while its node ran it. The number fences off whatever there was
(I3).
"""

from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.placement_record import STARTING_MESSAGE
from gpujob_operator.decide.model.plan import EventNote, NextStep
from gpujob_operator.decide.model.workers import perhaps_created_ranks, perhaps_workers


def begins_again(job: GPUJob, inputs: JobInputs) -> bool:
    """Whether the attempt, which starts, needs another number before its pods are created."""
    perhaps, pods = inputs.perhaps_created, inputs.job_pods
    if perhaps is None or not perhaps.by_another or pods.current:
        return False
    doubtful = perhaps_created_ranks(job, perhaps)
    return bool(doubtful) and not perhaps_workers(job, pods.in_the_way)


def again(job: GPUJob, now: datetime) -> NextStep:
    """The same placement and the same time to start, for the next attempt."""
    before = job.status.attempt
    text = (
        f"attempt {before + 1} in place of attempt {before}, which another process of the operator "
        "placed: pods of it may have been created and removed"
    )
    writer = ConditionWriter(job, job.status, now)
    writer.set(conditions.SCHEDULED, True, "Placed", text)
    writer.set(conditions.RUNNING, False, "Starting", STARTING_MESSAGE)
    status = writer.status(attempt=before + 1)
    # The change of the status causes the next cycle.
    return NextStep(status, events=(EventNote("Placed", text),))
