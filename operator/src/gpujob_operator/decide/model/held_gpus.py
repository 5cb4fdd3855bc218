"""What the attempt of a job holds on GPUs."""

from gpujob_api.gpujob import GPUJob, Reservation, ReservationSource
from gpujob_api.quantities import MIB

# A node and the UUID of a GPU of it: two nodes can claim one UUID.
Place = tuple[str, str]
# A process has a context on its GPU that no library's limit covers: up to this much above a cap is
# no breach.
CONTEXT_BYTES = 768 * MIB


def holds_gpus(job: GPUJob) -> bool:
    """True while an attempt of the job is not proven finished. Of a job that is being deleted, its
    pods alone tell (see `capacity.usage`)."""
    leaves = job.metadata.deletion_timestamp is not None
    return job.status.placement is not None and not job.finished and not leaves


def is_whole_gpu(reservation: Reservation | None) -> bool:
    """Whether nobody else may be on the GPU; so it is where nothing is known of the reservation."""
    if reservation is None:
        return True
    return reservation.exclusive or reservation.source is ReservationSource.WHOLE_GPU


def memory_cap_bytes(job: GPUJob) -> int | None:
    """What the workers of the attempt may use of each of its GPUs, in bytes, beside contexts; None
    where no cap was asked for. The attempt can reserve more, because contexts count as well.
    """
    held, hint = job.status.reservation, job.spec.gpu.memory
    is_capped = held is not None and held.source is ReservationSource.HINT
    return hint.bytes if is_capped and hint is not None else None
