"""The refusals to start a job's pods that still apply to the job's current spec."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.start_refusal import StartRefusal


def current_refusals(job: GPUJob) -> tuple[StartRefusal, ...]:
    """Returns the refusals of the current spec. An edit may have fixed the others."""
    refusals, generation = job.status.start_refusals, job.metadata.generation
    if not refusals:
        return ()
    return tuple([one for one in refusals if one.generation in (None, generation)])


def is_edited_since_refused(job: GPUJob) -> bool:
    """Returns whether every refusal of the job belongs to an earlier spec."""
    return bool(job.status.start_refusals) and not current_refusals(job)
