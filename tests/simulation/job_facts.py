"""What the recorder asks of a job's state, or of two that follow each other."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_operator.decide.measurement.reservation import UNHEALTHY_GPUS_SHARED_MAX
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.held_gpus import holds_gpus
from tests.simulation.api_server import ApiServer, OtherKind, Revision

# A job's UID, and the number of an attempt.
AttemptKey = tuple[str, int]
_NUMBER = re.compile("[0-9]")


def deleted(job: GPUJob) -> bool:
    return job.metadata.deletion_timestamp is not None


def held(job: GPUJob) -> tuple[object, ...]:
    return places(job), job.status.reservation


def wants_all(job: GPUJob) -> bool:
    held = job.status.reservation
    whole = held is not None and (held.exclusive or held.source.value == "WholeGPU")
    return whole or job.spec.sharing.mode.value == "Exclusive"


def is_shrink(before: GPUJob, job: GPUJob) -> bool:
    one, other = before.status.reservation, job.status.reservation
    same = places(before) == places(job)
    return same and one is not None and other is not None and other.memory_bytes <= one.memory_bytes


def is_within(before: GPUJob, job: GPUJob, seen_bytes: int) -> bool:
    """The job reserves no more than it did, or than it was seen to use there."""
    one, other = before.status.reservation, job.status.reservation
    same = places(before) == places(job)
    if not same or one is None or other is None:
        return False
    return other.memory_bytes <= max(one.memory_bytes, seen_bytes)


def may_not_share(
    job: GPUJob, others: Iterable[GPUJob], queues: Iterable[Mapping[str, Any]]
) -> list[GPUJob]:
    """Those of the others that are of another namespace and of another sharing group."""
    groups = {
        queue["metadata"]["name"]: queue["spec"].get("sharingGroup")
        or f"alone {queue['metadata']['name']}"
        for queue in queues
    }
    return [
        other
        for other in others
        if other.metadata.namespace != job.metadata.namespace
        and groups[other.spec.queue] != groups[job.spec.queue]
    ]


def is_rid_of_its_limit(job: GPUJob, needed_bytes: int) -> bool:
    """The job needs more than its hint allows, and has all of its GPUs after so many of them broke
    under it: nothing limits it there."""
    hint, held = job.spec.gpu.memory, job.status.reservation
    return (
        hint is not None
        and hint.bytes < needed_bytes
        and held is not None
        and held.source is ReservationSource.WHOLE_GPU
        and job.status.counters.unhealthy_gpus >= UNHEALTHY_GPUS_SHARED_MAX
    )


def leads(name: str, api: ApiServer) -> bool:
    """Whether this process holds the Lease, if there is one."""
    return any(one["spec"].get("holderIdentity") == name for one in api.list(OtherKind.LEASE))


def used_bytes(
    gpu: Mapping[str, Any], workers: Mapping[str, AttemptKey]
) -> Mapping[AttemptKey, int]:
    """What a reading shows of the GPU in use, by job UID and attempt. `workers` are the jobs and
    attempts of pods, by the pods' UIDs."""
    found: dict[AttemptKey, int] = defaultdict(int)
    for process in gpu.get("processes") or ():
        worker = workers.get(process.get("podUid") or "")
        if worker is not None:
            found[worker] += process["memoryBytes"]
    return found


def reason(job: GPUJob) -> str:
    """Why the job waits; with a number where room or quota is missing."""
    found = find(job.status, SCHEDULED)
    if found is None or (
        found.reason in ("InsufficientCapacity", "OverQuota") and not _NUMBER.search(found.message)
    ):
        return ""
    return found.message


def now_text(revision: Revision) -> str:
    return revision.object["status"]["observedAt"]


def places(job: GPUJob) -> object:
    """Where the job is; the UIDs of its pods become known later and move nobody."""
    placement = job.status.placement
    return None if placement is None else [(w.rank, w.node, w.gpus) for w in placement.workers]


def still_holds_gpus(job: GPUJob, before: GPUJob) -> bool:
    """The attempt that held GPUs holds them still."""
    return holds_gpus(job) and job.status.attempt == before.status.attempt


def end_of(job: GPUJob) -> str:
    """The phase in which it stays. One that was deleted, and that a finalizer keeps, has the phase
    that it happened to be in."""
    return "deleted" if job.metadata.deletion_timestamp is not None else job.status.phase.value


def attempt_key(job: GPUJob) -> AttemptKey:
    return job.metadata.uid, job.status.attempt


def key_of(job: GPUJob) -> str:
    return job.metadata.key
