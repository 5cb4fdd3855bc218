"""Records of pods that arrived after their GPUs had been given to other jobs.

A leader may have requested a pod and died. Its successor, unaware of the request, gave the GPUs
away and died before the pod arrived and could be deleted. The next leader finds both the pod and
the later job.

No leader places a job on a GPU where it does not fit next to a running job. A record that does not
fit together with a later job therefore belongs to such a pod. A job that was placed earlier proves
nothing: its GPUs may have been given to the record's job before its status could be written.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.held_gpus import Place, holds_gpus, is_whole_gpu
from gpujob_operator.decide.model.sharing_groups import may_share


def crowded_out(
    recorded: Iterable[GPUJob],
    stored: Iterable[GPUJob],
    allocatable_bytes: Mapping[Place, int],
    groups: Mapping[str, str],
) -> frozenset[str]:
    """Returns the UIDs of jobs whose record conflicts with a later job.

    They conflict by memory, by exclusive use, or because they may not share a GPU. `recorded` are
    placed as their live pods record, and `stored` as their statuses record. `allocatable_bytes` is
    what all jobs on a GPU may hold together. A GPU without an entry has no limit. `groups` has the
    sharing group of each queue.
    """
    holders: dict[Place, list[GPUJob]] = defaultdict(list)
    for job in stored:
        _hold(job, holders)
    crowded: set[str] = set()
    for job in sorted(recorded, key=_placed_at, reverse=True):
        if any(
            not _fits(job, holders[place], allocatable_bytes.get(place), groups)
            for place in _places(job)
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


def _fits(
    job: GPUJob,
    others: list[GPUJob],
    allocatable_bytes: int | None,
    groups: Mapping[str, str],
) -> bool:
    later = [other for other in others if _placed_at(other) > _placed_at(job)]
    if not later:
        return True
    if any(is_whole_gpu(each.status.reservation) for each in (job, *later)):
        return False
    held = [each.status.reservation for each in (job, *others)]
    held_bytes = sum(each.memory_bytes for each in held if each is not None)
    if allocatable_bytes is not None and held_bytes > allocatable_bytes:
        return False
    return all(may_share(job, other, groups) for other in later)


def _placed_at(job: GPUJob) -> float:
    at = job.status.attempt_started_at
    return at.timestamp() if at is not None else 0.0
