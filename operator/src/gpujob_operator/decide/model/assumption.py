"""What counts of a decided status before it is durable.

A decision whose write is under way is assumed in the next snapshot, so that nothing is given away
twice. What a decision frees is not assumed: until the API server has it, whoever reads the job's
status still finds it held, and a write that fails would have freed nothing.
"""

from dataclasses import replace

from gpujob_api.gpujob import GPUJobStatus, Reservation, ReservationSource


def assumed_status(before: GPUJobStatus, after: GPUJobStatus) -> GPUJobStatus | None:
    """The status `after`, holding at least what the job holds with `before`.

    None where it would hold other GPUs or none: then the status before still counts.
    """
    if before.placement is None or before.finished:
        return after
    if after.finished or _places(after) != _places(before):
        return None
    held = _at_least_both(before.reservation, after.reservation)
    return after if held == after.reservation else replace(after, reservation=held)


def _places(status: GPUJobStatus) -> list[tuple[int, str, tuple[str, ...]]]:
    """Where the workers are; not which pods they are."""
    workers = () if status.placement is None else status.placement.workers
    return [(worker.rank, worker.node, worker.gpus) for worker in workers]


def _at_least_both(one: Reservation | None, other: Reservation | None) -> Reservation | None:
    if one is None or other is None:
        return other or one
    whole = [each for each in (one, other) if each.source is ReservationSource.WHOLE_GPU]
    return Reservation(
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        utilization_percent=max(one.utilization_percent, other.utilization_percent),
        source=whole[0].source if whole else other.source,
        exclusive=one.exclusive or other.exclusive,
    )
