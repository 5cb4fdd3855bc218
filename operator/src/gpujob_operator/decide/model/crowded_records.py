"""Records of pods that came after the GPUs they name were given to other jobs.

A leader that died may have asked for a pod, its successor gave the GPUs away without knowing of the
request, and died too before the pod came and was asked to go. Whoever leads next finds both. No
leader places a job where it does not fit beside another one that runs there, so that a record to
which a later job does not fit is such a pod's. A job that was placed earlier says nothing: what it
held may have been given to the record's job, and its status not have been written any more.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.held_gpus import Place, holds_gpus, is_whole_gpu


def crowded_out(
    recorded: Iterable[GPUJob], stored: Iterable[GPUJob], allocatable_bytes: Mapping[Place, int]
) -> frozenset[str]:
    """The UIDs of jobs whose record does not hold beside a later job, by memory, by who is to be
    alone, or by the namespace.

    `recorded` are placed as their pods record, which have not ended; `stored` as their statuses
    say. `allocatable_bytes` is what all jobs on a GPU may hold; one that is not in it has enough.
    """
    holders: dict[Place, list[GPUJob]] = defaultdict(list)
    for job in stored:
        _hold(job, holders)
    crowded: set[str] = set()
    for job in sorted(recorded, key=_placed_at, reverse=True):
        if any(
            not _fits(job, holders[place], allocatable_bytes.get(place)) for place in _places(job)
        ):
            crowded.add(job.metadata.uid)
        else:
            _hold(job, holders)
    return frozenset(crowded)


def _hold(job: GPUJob, holders: dict[Place, list[GPUJob]]) -> None:
    for place in _places(job):
        holders[place].append(job)


def _places(job: GPUJob) -> list[Place]:
    placement = job.status.placement
    if placement is None or not holds_gpus(job):
        return []
    return [(worker.node, uuid) for worker in placement.workers for uuid in worker.gpus]


def _fits(job: GPUJob, others: list[GPUJob], allocatable_bytes: int | None) -> bool:
    later = [other for other in others if _placed_at(other) > _placed_at(job)]
    if not later:
        return True
    if any(is_whole_gpu(each.status.reservation) for each in (job, *later)):
        return False
    held = [each.status.reservation for each in (job, *others)]
    held_bytes = sum(each.memory_bytes for each in held if each is not None)
    if allocatable_bytes is not None and held_bytes > allocatable_bytes:
        return False
    return all(other.metadata.namespace == job.metadata.namespace for other in later)


def _placed_at(job: GPUJob) -> float:
    at = job.status.attempt_started_at
    return at.timestamp() if at is not None else 0.0
