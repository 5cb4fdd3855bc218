"""A node that does not have a job's GPU any more: the device is lost, and that is not the job's
failure."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_operator.decide.lifecycle.faults import SILENT_SECONDS
from gpujob_operator.decide.model.plan import DeletePod, Plan
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_report,
    make_snapshot,
    measured,
    received,
    running,
    statuses,
)
from tests.harness.world import World

OTHER = (make_gpu("GPU-9"),)


def decided(job: GPUJob, *gpus: Any, at: float = 10.0, **snapshot: Any) -> Plan:
    node = make_gpu_node("n0", *gpus, at=at)
    pods = snapshot.pop("pods", make_pods(job))
    return plan(make_snapshot(job, pods=pods, gpu_nodes=[node], **snapshot), after(at))


def status_of(plan: Plan) -> GPUJobStatus:
    return statuses(plan.items)["job"]


def test_a_job_whose_gpu_was_replaced_is_interrupted_at_once_and_uses_no_retry() -> None:
    world = World(make_job("job", retries=0), gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))])
    world.tick()
    assert world.gpus("job") == {"GPU-0"}
    world.snapshot = replace(world.snapshot, gpu_nodes=(make_gpu_node("n0", *OTHER),))
    world.tick()
    world.tick(20)
    status = world.status("job")
    assert (status.phase, world.gpus("job")) == (JobPhase.RUNNING, {"GPU-9"})
    counted = status.counters
    assert (counted.hung, counted.errors, counted.out_of_memory, counted.unhealthy_gpus) == (0,) * 4
    assert (counted.interruptions, status.attempt) == (1, 2)


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING])
def test_the_stop_names_the_gpu_and_what_the_node_has(phase: JobPhase) -> None:
    found = status_of(decided(running(make_job(), phase=phase), *OTHER))
    assert found.phase is JobPhase.STOPPING
    assert found.stop is not None
    assert (found.stop.reason, found.stop.message) == (
        "GPUGone",
        "GPU-0 of node n0 is gone; its agent shows 1 GPU",
    )


def test_one_of_several_gpus_is_enough() -> None:
    job = running(make_job(gpus_per_worker=2), ("n0", ("GPU-0", "GPU-1")))
    found = status_of(decided(job, make_gpu("GPU-0"), make_gpu("GPU-9", index=1)))
    assert found.stop is not None
    assert found.stop.message.startswith("GPU-1 of node n0 is gone")


def test_a_job_that_reports_has_its_gpu_whatever_one_reading_says() -> None:
    """I14; and it is looked at again when the report is old."""
    job = running(make_job(), progressed_at=after(5))
    spoke = (received(job, make_report(), at=5),)
    calm = decided(job, *OTHER, reports=spoke)
    assert not any(isinstance(item, DeletePod) for item in calm.items)
    assert statuses(calm.items).get("job", job.status).phase is JobPhase.RUNNING
    assert calm.next_seconds is not None
    assert calm.next_seconds <= SILENT_SECONDS
    later = decided(job, *OTHER, reports=spoke, at=5 + SILENT_SECONDS)
    assert status_of(later).phase is JobPhase.STOPPING


def test_a_new_leader_listens_first() -> None:
    job = running(make_job())
    calm = decided(job, *OTHER, listening_since=after(9))
    assert statuses(calm.items).get("job", job.status).phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    "node",
    [
        {"gpu_nodes": [make_gpu_node("n0", *OTHER, at=-3600)]},
        {"gpu_nodes": [make_gpu_node("n0", *OTHER)], "nodes": [make_node(ready=False)]},
    ],
    ids=["old reading", "node away"],
)
def test_who_does_not_say_what_is_there_now_stops_nobody(node: dict[str, Any]) -> None:
    """I14."""
    job = running(make_job())
    found = plan(make_snapshot(job, pods=make_pods(job), **node), after(0))
    assert statuses(found.items).get("job", job.status).phase is JobPhase.RUNNING


def test_a_reading_without_any_gpu_stops_nobody() -> None:
    job = running(make_job())
    node = make_gpu_node("n0")
    node = replace(node, status=replace(node.status, gpus=()))
    found = plan(make_snapshot(job, pods=make_pods(job), gpu_nodes=[node]), after(0))
    assert statuses(found.items).get("job", job.status).phase is JobPhase.RUNNING


def test_a_thread_that_reports_on_without_progress_makes_it_no_failure_of_the_job() -> None:
    job = running(make_job(hang_seconds=600), measurement=measured(GIB, step=10))
    spoke = (received(job, make_report(step=10), at=700),)
    found = status_of(decided(job, *OTHER, reports=spoke, at=701))
    assert found.stop is not None
    assert found.stop.reason == "GPUGone"
    assert "no progress for 701 s" in found.stop.message


@pytest.mark.parametrize(
    ("failure", "counted"), [(None, 0), (FailureClass.UNKNOWN, 0), (FailureClass.USER_ERROR, 1)]
)
def test_a_worker_that_fails_without_its_gpu_is_no_failure_of_the_job(
    failure: FailureClass | None, counted: int
) -> None:
    job = running(make_job(), started_at=after(0))
    words = make_report(failure=failure) if failure is not None else None
    pods = make_pods(job, exit_code=1, termination=words)
    found = status_of(decided(job, *OTHER, pods=pods))
    assert found.counters.errors == counted
    assert found.counters.interruptions == 1 - counted


DEVICE_ERROR = "AcceleratorError: CUDA error: unspecified launch failure"


@pytest.mark.parametrize(
    ("message", "step", "counted"),
    [(DEVICE_ERROR, 0, 0), (DEVICE_ERROR, 40, 0), ("ValueError: no such model", 40, 1)],
)
def test_a_worker_whose_gpu_broke_before_its_stop_was_decided_is_no_failure_of_the_job(
    message: str, step: int, counted: int
) -> None:
    """The error ends the worker at once, and the agent reports the GPU a second later."""
    job = running(make_job(), started_at=after(0))
    words = make_report(step=step, failure=FailureClass.USER_ERROR, message=message)
    pods = make_pods(job, exit_code=1, termination=words)
    found = status_of(decided(job, make_gpu("GPU-0", healthy=False), pods=pods))
    assert found.phase is JobPhase.PENDING
    assert found.counters.errors == counted
    assert found.counters.unhealthy_gpus == 1 - counted
    assert (found.last_error is not None) is bool(counted)


def test_an_error_of_a_device_before_the_first_step_is_tried_once_more() -> None:
    """Also if the agent does not find the GPU broken. The same error again is the program's."""
    job = running(make_job(), started_at=after(0))
    phases: list[JobPhase | None] = []
    for attempt in (1, 2):
        words = make_report(attempt, step=0, failure=FailureClass.USER_ERROR, message=DEVICE_ERROR)
        pods = make_pods(job, exit_code=1, termination=words)
        found = status_of(decided(job, make_gpu("GPU-0"), pods=pods))
        phases.append(found.phase)
        job = running(make_job(), attempt=2, last_error=found.last_error, counters=found.counters)
    assert phases == [JobPhase.PENDING, JobPhase.FAILED]


def test_with_a_cache_it_is_seen_in_the_cycle_of_the_reading() -> None:
    planner, job = Planner(), running(make_job("job"), progressed_at=after(0))
    whole = make_snapshot(job, pods=make_pods(job), gpu_nodes=[make_gpu_node("n0")])
    for at in (0.0, 1.0):
        planner(whole, after(at))
    found = planner(replace(whole, gpu_nodes=(make_gpu_node("n0", *OTHER),)), after(2))
    assert status_of(found).phase is JobPhase.STOPPING
