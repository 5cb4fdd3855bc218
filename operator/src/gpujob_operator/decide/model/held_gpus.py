"""What the attempt of a job holds on GPUs."""

from collections.abc import Iterable

from gpujob_api.gpujob import GPUJob, Measurement, Reservation, ReservationSource
from gpujob_api.quantities import MIB

# A node and the UUID of a GPU of it: two nodes can claim one UUID.
Place = tuple[str, str]
# A process has a context on its GPU that no library's limit covers: up to this much above a cap is
# no breach.
CONTEXT_BYTES = 768 * MIB
# So many of a job's processes on one GPU may have a context: the ranks of a launcher, and loaders.
CONTEXTS_MAX = 8


def holds_gpus(job: GPUJob) -> bool:
    """True while an attempt of the job is not proven finished. Of a job that is being deleted, its
    pods alone tell (see `capacity.usage`)."""
    leaves = job.metadata.deletion_timestamp is not None
    return job.status.placement is not None and not job.finished and not leaves


def queue_of(job: GPUJob) -> str:
    """The queue whose quota the job uses: while it holds GPUs, the one that admitted it, whatever
    its spec says since."""
    admitted = job.status.queue if job.status.placement is not None else None
    return admitted or job.spec.queue


def is_whole_gpu(reservation: Reservation | None) -> bool:
    """Whether nobody else may be on the GPU; so it is where nothing is known of the reservation."""
    if reservation is None:
        return True
    return reservation.exclusive or reservation.source is ReservationSource.WHOLE_GPU


def memory_cap_bytes(job: GPUJob) -> int | None:
    """What the workers of the attempt may use of each of its GPUs, in bytes, beside contexts; None
    where no cap was asked for. The attempt can reserve more, because contexts count as well.

    An edit of the spec counts from the next attempt on: the workers keep the limit that they have.
    """
    held = job.status.reservation
    if held is None or held.source is not ReservationSource.HINT:
        return None
    # An operator of before wrote no cap, and reserved just that.
    return held.memory_bytes if held.cap_bytes is None else held.cap_bytes


def context_bytes(used_bytes: Iterable[int]) -> int:
    """What the contexts of a job's processes may take of one GPU, in bytes. `used_bytes` is what
    each process uses there: no context takes more than that."""
    bytes_in_all = sum([min(CONTEXT_BYTES, each) for each in used_bytes])
    return max(CONTEXT_BYTES, min(bytes_in_all, CONTEXTS_MAX * CONTEXT_BYTES))


def known_context_bytes(measurement: Measurement | None) -> int:
    """The most that `context_bytes` was in any attempt of the job so far."""
    known_bytes = measurement.context_bytes if measurement is not None else None
    return known_bytes or CONTEXT_BYTES
