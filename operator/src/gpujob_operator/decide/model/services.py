"""Which jobs are replicas of one GPUService."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import GPUSERVICE


def are_replicas_of_one(job: GPUJob, other: GPUJob) -> bool:
    """Returns whether both jobs belong to the same GPUService."""
    service = _service_uid(job)
    return service is not None and service == _service_uid(other)


def _service_uid(job: GPUJob) -> str | None:
    owners = job.metadata.owner_references
    return next((one.uid for one in owners if one.kind == GPUSERVICE.kind), None)
