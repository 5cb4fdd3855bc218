"""Records of pods that came after the GPUs they name were given to other jobs.

A leader that died may have asked for a pod, its successor gave the GPUs away without knowing of the
request, and died too before the pod came and was asked to go. Whoever leads next finds both. No
leader places two jobs where they do not fit together, so that the older record of two that do not
is such a pod's.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpujob_api.gpujob import GPUJob, ReservationSource, SharingMode

# Node and UUID of a GPU.
Place = tuple[str, str]


def crowded_out(
    recorded: Iterable[GPUJob], stored: Iterable[GPUJob], room_bytes: Mapping[Place, int]
) -> frozenset[str]:
    """The UIDs of jobs whose record does not hold beside the others, by memory, by who is to be
    alone, or by a later job of another namespace.

    `recorded` are placed as their pods record; `stored` as their statuses say. `room_bytes` is what
    all jobs on a GPU may hold; a GPU that is not in it has room.
    """
    holders: dict[Place, list[GPUJob]] = defaultdict(list)
    for job in stored:
        _hold(job, holders)
    crowded: set[str] = set()
    for job in sorted(recorded, key=_placed_at, reverse=True):
        if any(not _fits(job, holders[place], room_bytes.get(place)) for place in _places(job)):
            crowded.add(job.metadata.uid)
        else:
            _hold(job, holders)
    return frozenset(crowded)


def _hold(job: GPUJob, holders: dict[Place, list[GPUJob]]) -> None:
    for place in _places(job):
        holders[place].append(job)


def _places(job: GPUJob) -> list[Place]:
    placement = job.status.placement
    workers = placement.workers if placement is not None and not job.finished else ()
    return [(worker.node, uuid) for worker in workers for uuid in worker.gpus]


def _fits(job: GPUJob, others: list[GPUJob], room_bytes: int | None) -> bool:
    together = [job, *others]
    if others and any(map(_is_alone, together)):
        return False
    held_bytes = sum(map(_held_bytes, together))
    if others and room_bytes is not None and held_bytes > room_bytes:
        return False
    return not any(
        other.metadata.namespace != job.metadata.namespace and _placed_at(other) > _placed_at(job)
        for other in others
    )


def _is_alone(job: GPUJob) -> bool:
    reservation = job.status.reservation
    if reservation is None or job.spec.sharing.mode is SharingMode.EXCLUSIVE:
        return True
    return reservation.exclusive or reservation.source is ReservationSource.WHOLE_GPU


def _held_bytes(job: GPUJob) -> int:
    reservation = job.status.reservation
    return reservation.memory_bytes if reservation is not None else 0


def _placed_at(job: GPUJob) -> float:
    at = job.status.attempt_started_at
    return at.timestamp() if at is not None else 0.0
