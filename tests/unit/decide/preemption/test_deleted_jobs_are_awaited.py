"""A job that was deleted leaves its GPUs within its grace, so no other job is stopped for them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.capacity.leaving import leaving_pods
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_queue,
    make_snapshot,
    running,
    statuses,
)

GRACE_SECONDS = 30
DELETED, NOW = 60, 62
QUEUES = {"no queue": (), "a full queue": (make_queue(gpus=2),)}


def whole(name: str, priority: int = 0, created: float = 0) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, priority=priority, created=created)


def deleted_pod(grace_seconds: float = GRACE_SECONDS) -> PodView:
    leaves = running(whole("leaves"), ("n0", ("GPU-0",)))
    return make_pod(leaves, node="n0", deletion_at=after(DELETED + grace_seconds))


def is_stopped(
    pod: PodView, *, gone: bool = True, queues: tuple[GPUQueue, ...] = (), at: float = NOW
) -> bool:
    """Whether `stays` is stopped for `urgent` while the pod of `leaves` is deleted."""
    stays = running(whole("stays"), ("n0", ("GPU-1",)))
    stays = replace(stays, status=replace(stays.status, progressed_at=after(at)))
    leaves = running(whole("leaves"), ("n0", ("GPU-0",)))
    metadata = replace(leaves.metadata, deletion_timestamp=after(DELETED))
    jobs = [stays, whole("urgent", 5, DELETED + 1)]
    if not gone:
        jobs.append(replace(leaves, metadata=metadata))
    node = make_gpu_node("n0", make_gpu("GPU-0"), make_gpu("GPU-1", index=1), at=at)
    snapshot = make_snapshot(
        *jobs, pods=(make_pod(stays, node="n0"), pod), gpu_nodes=(node,), queues=queues
    )
    written = statuses(plan(snapshot, after(at)).items)
    is_made_room = "stays" in written and written["stays"].stop is not None
    if not is_made_room:
        text = " ".join(one.message for one in written["urgent"].conditions)
        assert "waiting for pods of deleted jobs to end" in text
    return is_made_room


@pytest.mark.parametrize("queues", QUEUES.values(), ids=QUEUES)
def test_nobody_is_stopped_while_a_deleted_job_leaves(queues: tuple[GPUQueue, ...]) -> None:
    assert not is_stopped(deleted_pod(), queues=queues)


def test_nor_while_the_object_of_the_job_waits_for_its_pods() -> None:
    """It was deleted in the foreground."""
    assert not is_stopped(deleted_pod(), gone=False)


def test_a_pod_that_outlives_its_grace_is_not_waited_for() -> None:
    late = DELETED + GRACE_SECONDS + 16
    assert is_stopped(deleted_pod(), at=late)


def test_nobody_waits_for_a_grace_that_no_job_can_have() -> None:
    assert is_stopped(deleted_pod(grace_seconds=1e6))


def test_only_pods_that_are_deleted_leave() -> None:
    pod = deleted_pod()
    found = leaving_pods([pod], after(NOW), 3600)
    assert found.seconds == {("n0", "GPU-0"): GRACE_SECONDS + 15 - 2}
    for other in (
        replace(pod, deletion_at=None),
        replace(pod, phase=PodPhase.SUCCEEDED),
        replace(pod, node=None),
        replace(pod, deletion_at=after(NOW) - timedelta(seconds=16)),
    ):
        assert not leaving_pods([other], after(NOW), 3600).seconds
