"""What kept pods of a job from starting, as far as it still says something of the job."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.start_refusal import StartRefusal


def current_refusals(job: GPUJob) -> tuple[StartRefusal, ...]:
    """What was refused of the spec as it is now: an edit may have mended the rest."""
    refusals, generation = job.status.start_refusals, job.metadata.generation
    if not refusals:
        return ()
    return tuple([one for one in refusals if one.generation in (None, generation)])


def is_edited_since_refused(job: GPUJob) -> bool:
    """True if everything that was ever refused of the job is of an earlier spec."""
    return bool(job.status.start_refusals) and not current_refusals(job)
