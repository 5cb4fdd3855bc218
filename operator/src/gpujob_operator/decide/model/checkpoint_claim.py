"""Decides which claim keeps a job's checkpoints.

It is the claim that the job names, a claim that the operator creates, or none.
"""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.claim_template import ClaimTemplate


def checkpoint_claim(job: GPUJob, template: ClaimTemplate | None) -> str | None:
    """Returns the claim's name, or None if checkpoints are in the pod's own folder and are lost
    with it.
    """
    if gets_default_claim(job, template):
        return default_claim_name(job)
    return job.spec.checkpoint.volume_claim_name


def gets_default_claim(job: GPUJob, template: ClaimTemplate | None) -> bool:
    """Returns whether the operator creates the job's claim.

    Several workers may run on several nodes. A claim for one node would keep them from starting.
    """
    if template is None or names_a_place(job):
        return False
    return job.spec.workers == 1 or template.serves_many_nodes


def names_a_place(job: GPUJob) -> bool:
    """Returns whether the job names a place for its checkpoints.

    A relative `checkpoint.path` is below the operator's checkpoint folder and names no other place.
    """
    checkpoint = job.spec.checkpoint
    return checkpoint.volume_claim_name is not None or (checkpoint.path or "").startswith("/")


def default_claim_name(job: GPUJob) -> str:
    return f"{job.metadata.name}-checkpoints"
