"""The claim that keeps a job's checkpoints.

It is the claim that the job names, a claim that the operator creates from its template, or none.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar

from gpujob_api.bounds import Items, Subdomain
from gpujob_api.codec import FieldError, check
from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import FLEET_MEMORY_BYTES_MAX, Memory


class AccessMode(Enum):
    """Access modes of a PersistentVolumeClaim with which a worker can write."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True, order=True)
class ClaimSize(Memory):
    """The size that a claim requests, such as 20Gi or 1Ti: at least 1 byte, at most 16 Pi."""

    bytes_max: ClassVar[int] = FLEET_MEMORY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """The claims to create. They use the cluster's default storage class if `storage_class_name` is
    None.
    """

    size: ClaimSize
    storage_class_name: Subdomain | None = None
    access_modes: Annotated[tuple[AccessMode, ...], Items(3, unique=True)] = (
        AccessMode.READ_WRITE_ONCE,
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.access_modes:
            raise FieldError("accessModes", "must have at least 1 item; got 0")

    @property
    def serves_many_nodes(self) -> bool:
        """Whether workers on several nodes can mount one claim at the same time."""
        return AccessMode.READ_WRITE_MANY in self.access_modes


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
