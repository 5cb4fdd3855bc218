"""Which decided statuses count before they are durable.

A decision whose write is under way is assumed in the next snapshot, so that nothing is given away
twice. A decision that frees GPUs or memory is not: until the API server has it, somebody who reads
the job's status would still find the GPUs held, and a write that fails would have freed nothing.
"""

from gpujob_api.gpujob import GPUJobStatus, Reservation, ReservationSource


def may_be_assumed(before: GPUJobStatus, after: GPUJobStatus) -> bool:
    """True if a job with the status `after` holds at least what it holds with `before`."""
    if before.placement is None or before.finished:
        return True
    if after.finished or after.placement != before.placement:
        return False
    if before.reservation is None:
        return True
    return after.reservation is not None and _at_least(after.reservation, before.reservation)


def _at_least(one: Reservation, other: Reservation) -> bool:
    return (
        one.memory_bytes >= other.memory_bytes
        and one.utilization_percent >= other.utilization_percent
        and _whole(one) >= _whole(other)
    )


def _whole(reservation: Reservation) -> bool:
    return reservation.exclusive or reservation.source is ReservationSource.WHOLE_CARD
