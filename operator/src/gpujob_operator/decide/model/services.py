"""Which jobs are replicas of a GPUService.

Their owner references and names decide. Labels are for selectors, and their users may edit them.
"""

import re
from dataclasses import dataclass

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import GPUSERVICE
from gpujob_api.meta import OwnerReference

_ENDING = re.compile(r"-([0-9a-f]{6})-(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class ReplicaId:
    """One replica of a revision of a service."""

    service: OwnerReference
    revision: str
    ordinal: int


def service_of(job: GPUJob) -> OwnerReference | None:
    """Returns the GPUService that owns the job, or None."""
    owners = job.metadata.owner_references
    return next((one for one in owners if one.kind == GPUSERVICE.kind), None)


def replica_id(job: GPUJob) -> ReplicaId | None:
    """Returns which replica the job is, or None if it measures backends or no service owns it."""
    service = service_of(job)
    if service is None or not job.metadata.name.startswith(service.name):
        return None
    match = _ENDING.fullmatch(job.metadata.name.removeprefix(service.name))
    return None if match is None else ReplicaId(service, match[1], int(match[2]))


def replica_name(service: str, revision: str, ordinal: int) -> str:
    return f"{service}-{revision}-{ordinal}"


def are_replicas_of_one(job: GPUJob, other: GPUJob) -> bool:
    """Returns whether both jobs belong to the same GPUService."""
    one, another = service_of(job), service_of(other)
    return one is not None and another is not None and one.uid == another.uid
