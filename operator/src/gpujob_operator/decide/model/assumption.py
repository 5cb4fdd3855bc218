"""Decides which part of a decided status counts before the status is durable.

A decision whose write is in flight is assumed in the next snapshot, so that no capacity is assigned
twice. Capacity that the decision releases is not assumed to be free. Readers of the job's status
still find it reserved until the write succeeds, and a failed write releases nothing.
"""

from dataclasses import replace

from gpujob_api.gpujob import GPUJobStatus, Reservation, ReservationSource


def assumed_status(before: GPUJobStatus, after: GPUJobStatus) -> GPUJobStatus | None:
    """Returns the status `after`, with at least the reservation of `before`.

    Returns None if `after` has other GPUs or none. In that case `before` still counts.
    """
    if before.placement is None or before.finished:
        return after
    if after.finished or places(after) != places(before):
        return None
    held = _at_least_both(before.reservation, after.reservation)
    return after if held == after.reservation else replace(after, reservation=held)


def places(status: GPUJobStatus) -> list[tuple[int, str, tuple[str, ...]]]:
    """Returns the placement without the pods' UIDs."""
    workers = () if status.placement is None else status.placement.workers
    return [(worker.rank, worker.node, worker.gpus) for worker in workers]


def _at_least_both(one: Reservation | None, other: Reservation | None) -> Reservation | None:
    if one is None or other is None:
        return other or one
    whole = [each for each in (one, other) if each.source is ReservationSource.WHOLE_GPU]
    return replace(
        whole[0] if whole else other,
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        utilization_percent=max(one.utilization_percent, other.utilization_percent),
        exclusive=one.exclusive or other.exclusive,
    )
