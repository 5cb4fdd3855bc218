"""Nothing new is placed on a node without the label. Its jobs go on, measured or not."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, Measurement
from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.snapshot import NodeView
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    running,
    statuses,
    used,
    with_status,
)
from tests.harness.world import World

UNMANAGED = make_node(managed=False)
HOURS = 5 * 3600.0


def test_nothing_is_placed_there_and_the_reason_is_said() -> None:
    world = World(make_job("waits"), nodes=[UNMANAGED], gpu_nodes=[make_gpu_node()])
    world.tick()
    assert world.phase("waits") is JobPhase.PENDING
    assert "the node lacks the label gpujob.dev/managed=true" in world.why("waits")
    world.snapshot = replace(world.snapshot, nodes=(make_node(),))
    world.tick()
    assert world.phase("waits") is JobPhase.RUNNING


def test_a_job_goes_on_there_while_another_one_waits() -> None:
    world = World(make_job("first"), gpu_nodes=[make_gpu_node("n0", make_gpu())])
    world.tick()
    world.snapshot = replace(world.snapshot, nodes=(UNMANAGED,))
    world.submit(make_job("second", priority=100))
    world.tick(HOURS)
    assert world.running() == {"first"}
    world.end("first")
    world.tick()
    assert (world.phase("first"), world.status("first").attempt) == (JobPhase.SUCCEEDED, 1)
    assert world.phase("second") is JobPhase.PENDING


@pytest.mark.promise("I14")
@pytest.mark.parametrize("node", [UNMANAGED, make_node(unschedulable=True), make_node()])
@pytest.mark.parametrize("gpu", [make_gpu(healthy=False), make_gpu("GPU-9")])
@pytest.mark.parametrize("age", [300.0, 5.0])
def test_an_old_reading_stops_no_job_whatever_else_closes_the_node(
    node: NodeView, gpu: Any, age: float
) -> None:
    """The agent goes with the label, and its last reading stays."""
    job = running(make_job())
    snapshot = make_snapshot(
        job, pods=[make_pod(job)], nodes=[node], gpu_nodes=[make_gpu_node("n0", gpu, at=100.0)]
    )
    stop = statuses(plan(snapshot, after(100.0 + age)).items).get("job", job.status).stop
    assert (stop is None) is (age > 30)


@pytest.mark.promise("I14")
def test_a_reading_becomes_old_on_a_closed_node_too() -> None:
    """Without any change of the snapshot."""
    job = running(make_job())
    gpu_nodes = [make_gpu_node("n0", make_gpu(), at=0.0)]
    snapshot = make_snapshot(job, pods=[make_pod(job)], nodes=[UNMANAGED], gpu_nodes=gpu_nodes)
    cache = SchedulerCache.of(snapshot)
    found: list[bool] = []
    for seconds in (5, 100):
        plan(snapshot, after(seconds), cache)
        closed = cache.capacity.nodes["n0"].closed
        assert closed is not None
        found.append(closed.stale)
    assert found == [False, True]


@pytest.mark.promise("I14")
def test_a_job_that_reports_nothing_is_not_hung_where_no_agent_is_left() -> None:
    measured: GPUJob = with_status(
        running(make_job()), measurement=Measurement(4 * GIB, 80.0, 3000)
    )
    snapshot = make_snapshot(
        measured,
        pods=[make_pod(measured)],
        nodes=[UNMANAGED],
        gpu_nodes=[make_gpu_node(at=10.0)],
        usage={(measured.metadata.uid, 1): used(4 * GIB, 80.0, 900)},
    )
    status = statuses(plan(snapshot, after(HOURS)).items).get("job", measured.status)
    assert (status.phase, status.stop) == (JobPhase.RUNNING, None)
