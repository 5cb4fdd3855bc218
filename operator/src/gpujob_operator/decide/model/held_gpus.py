"""What the attempt of a job holds on GPUs."""

from gpujob_api.gpujob import GPUJob, Reservation, ReservationSource

# A node and the UUID of a GPU of it: two nodes can claim one UUID.
Place = tuple[str, str]


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
