"""A job that is being deleted is stopped, and holds nothing once its pods are gone, whoever keeps
its object."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan, WriteQueueStatus
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_pod,
    make_queue,
    make_snapshot,
    placed,
    running,
    statuses,
)

DAY = 86_400.0


def deleted(job: GPUJob, *finalizers: str) -> GPUJob:
    metadata = replace(job.metadata, deletion_timestamp=after(1), finalizers=finalizers)
    return replace(job, metadata=metadata)


def decided(job: GPUJob, *pods: PodView, at: float = DAY, **fields: Any) -> Plan:
    snapshot = make_snapshot(
        job, make_job("next"), pods=pods, gpu_nodes=[make_gpu_node("n0", at=at)], **fields
    )
    found = plan(snapshot, after(at))
    remembered = Planner()
    remembered(snapshot, after(at - 1))
    assert remembered(snapshot, after(at)).items == found.items
    return found


def next_is(found: Plan) -> JobPhase:
    return statuses(found.items)["next"].phase


@pytest.mark.promise("I1")
@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING])
def test_its_pods_are_stopped_and_hold_their_gpus_until_they_are_gone(phase: JobPhase) -> None:
    """I1, I7."""
    job = deleted(running(make_job("held"), phase=phase), "argocd/finalizer")
    found = decided(job, make_pod(job))
    assert [i.pod.name for i in found.items if isinstance(i, DeletePod)] == ["held-1-0"]
    assert next_is(found) is JobPhase.PENDING
    again = decided(job, make_pod(job, deletion_at=after(20)))
    assert not any(isinstance(item, DeletePod) for item in again.items)
    assert next_is(again) is JobPhase.PENDING


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING])
def test_it_holds_nothing_and_starts_nothing_once_they_are_gone(phase: JobPhase) -> None:
    job = deleted(running(make_job("held"), phase=phase), "argocd/finalizer")
    for pods in ((), (make_pod(job, exit_code=0),), (make_pod(job, exit_code=1),)):
        found = decided(job, *pods)
        assert next_is(found) is JobPhase.STARTING
        creates = [item.job.metadata.name for item in found.items if isinstance(item, CreatePod)]
        assert "held" not in creates
        assert "held" not in statuses(found.items)


def test_it_counts_in_no_queue() -> None:
    job = deleted(running(make_job("held")), "argocd/finalizer")
    found = decided(job, queues=(make_queue(gpus=1),))
    assert next_is(found) is JobPhase.STARTING
    (queue,) = (item.status for item in found.items if isinstance(item, WriteQueueStatus))
    assert (queue.running_jobs, queue.reserved_gpus) == (1, 1)


def test_who_waits_and_is_deleted_never_starts() -> None:
    job = deleted(make_job("held"), "argocd/finalizer")
    assert "held" not in statuses(decided(job).items)


def test_pods_that_are_to_outlive_their_job_are_left_alone() -> None:
    """`kubectl delete --cascade=orphan` keeps the object until its pods are let go."""
    job = deleted(running(make_job("held")), "orphan")
    found = decided(job, make_pod(job))
    assert not any(isinstance(item, DeletePod) for item in found.items)
    assert next_is(found) is JobPhase.PENDING


def test_its_gpus_are_those_of_its_status_not_of_a_pods_words() -> None:
    """I1."""
    job = deleted(placed(make_job("held")), "argocd/finalizer")
    assert next_is(decided(job, make_pod(job, gpus=()))) is JobPhase.PENDING
