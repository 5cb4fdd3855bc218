"""What the attempt of a job holds on GPUs."""

from collections.abc import Iterable

from gpujob_api.gpujob import GPUJob, Measurement, Reservation, ReservationSource
from gpujob_api.quantities import MIB

# A node and the UUID of one of its GPUs. Two nodes can claim one UUID.
Place = tuple[str, str]
# A process has a context on its GPU that no library's limit covers. Usage up to this much above a
# cap is no breach.
CONTEXT_BYTES = 768 * MIB
# At most this many of a job's processes on one GPU are assumed to have a context, such as a
# launcher's ranks and loaders.
CONTEXTS_MAX = 8
# Unmanaged processes below this size are the desktop or a monitoring tool and do not count.
EXTERNAL_NOISE_BYTES = 64 * MIB


def holds_gpus(job: GPUJob) -> bool:
    """Returns whether an attempt of the job is not proven finished.

    Only its pods decide this for a job that is being deleted (see `capacity.usage`).
    """
    leaves = job.metadata.deletion_timestamp is not None
    return job.status.placement is not None and not job.finished and not leaves


def nodes_of(job: GPUJob) -> frozenset[str]:
    """Returns the nodes of the attempt that is not proven finished. Empty without one."""
    placement = job.status.placement
    if placement is None or job.finished:
        return frozenset()
    return frozenset([worker.node for worker in placement.workers])


def queue_of(job: GPUJob) -> str:
    """Returns the queue whose quota the job uses.

    While the job holds GPUs, that is the queue that admitted it, even if the spec has since
    changed.
    """
    admitted = job.status.queue if job.status.placement is not None else None
    return admitted or job.spec.queue


def is_whole_gpu(reservation: Reservation | None) -> bool:
    """Returns whether no other job may be on the GPU. True if the reservation is unknown."""
    if reservation is None:
        return True
    return reservation.exclusive or reservation.source is ReservationSource.WHOLE_GPU


def memory_cap_bytes(job: GPUJob) -> int | None:
    """Returns what the attempt's workers may use of each GPU, in bytes, not counting contexts.

    Returns None if the job has no cap. The attempt can reserve more, because contexts count as
    well. An edit of the spec counts from the next attempt on, because running workers keep their
    limit.
    """
    held = job.status.reservation
    if held is None or held.source is not ReservationSource.HINT:
        return None
    # Earlier releases wrote no cap and reserved exactly the hint.
    return held.memory_bytes if held.cap_bytes is None else held.cap_bytes


def context_bytes(used_bytes: Iterable[int]) -> int:
    """Returns what the contexts of a job's processes may take of one GPU, in bytes.

    `used_bytes` is what each process uses there. No context takes more than its process uses.
    """
    bytes_in_all = sum([min(CONTEXT_BYTES, each) for each in used_bytes])
    return max(CONTEXT_BYTES, min(bytes_in_all, CONTEXTS_MAX * CONTEXT_BYTES))


def known_context_bytes(measurement: Measurement | None) -> int:
    """Returns the largest `context_bytes` of all attempts of the job so far."""
    known_bytes = measurement.context_bytes if measurement is not None else None
    return known_bytes or CONTEXT_BYTES
