"""Readings come directly or by the status of the GPUNode: the newest count, and none looks newer
than it is (I14)."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpujob_api.codec import format_time
from gpujob_api.gpunode import GPU, GPUNodeStatus
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_gpu, make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.manifests import (
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
)

pytestmark = pytest.mark.promise("I14")

IDLE = make_gpu()
USED = make_gpu(ours=[("pod-a", 2 * GIB)])
SICK = replace(IDLE, healthy=False, health_message="XID 79")
HOUR = timedelta(hours=1)


class _Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.dirty = Dirty()
        self.cache = Cache(self.dirty, Metrics(), self.clock.now)
        self.version = 0
        # How far the node's clock is ahead.
        self.error = timedelta(0)
        self.cache.apply(Kind.NODE, "ADDED", node_manifest())

    def write(self, gpu: GPU, *, seconds_ago: float = 0.0) -> None:
        """A status that arrives now, and was read and written before."""
        self.version += 1
        at = self.clock.now() - timedelta(seconds=seconds_ago)
        manifest: dict[str, Any] = gpu_node_manifest("n0", gpu, version=self.version)
        manifest["status"]["observedAt"] = format_time(at + self.error)
        manifest["metadata"]["managedFields"] = [{"subresource": "status", "time": format_time(at)}]
        self.cache.apply(Kind.GPU_NODE, "MODIFIED", manifest)

    def send(self, gpu: GPU, *, seconds_ago: float = 0.0) -> bool:
        """A direct reading that arrives now, and was taken before."""
        at = self.clock.now() - timedelta(seconds=seconds_ago)
        status = GPUNodeStatus(observed_at=at + self.error, gpus=(gpu,))
        return self.cache.take_reading("n0", status, at)

    @property
    def snapshot(self) -> Snapshot:
        return self.cache.snapshot((), Configuration())

    @property
    def gpu(self) -> GPU:
        return self.snapshot.gpu_nodes[0].status.gpus[0]

    @property
    def at(self) -> datetime | None:
        return self.snapshot.gpu_nodes[0].status.observed_at

    @property
    def age_seconds(self) -> float:
        assert self.at is not None
        return (self.clock.now() - self.at).total_seconds()


@pytest.fixture
def bench() -> _Bench:
    bench = _Bench()
    bench.write(IDLE)
    return bench


def test_a_direct_reading_is_in_the_next_snapshot_and_wakes_the_loop(bench: _Bench) -> None:
    bench.dirty.take()
    bench.clock.advance(2.0)
    assert bench.send(USED)
    assert (bench.gpu, bench.age_seconds) == (USED, 0.0)
    assert (bench.dirty.count, bench.dirty.urgent.is_set()) == (1, False)


def test_a_late_status_does_not_undo_a_newer_direct_reading(bench: _Bench) -> None:
    bench.clock.advance(5.0)
    bench.send(USED)
    bench.write(IDLE, seconds_ago=4.0)
    assert bench.gpu == USED
    bench.cache.close_readings("n0")
    assert bench.gpu == USED, "nor once the connection is gone"


def test_people_change_the_node_while_readings_go_directly(bench: _Bench) -> None:
    bench.send(USED)
    manifest = gpu_node_manifest("n0", IDLE, version=7)
    manifest["spec"] = {"unschedulable": True}
    bench.cache.apply(Kind.GPU_NODE, "MODIFIED", manifest)
    (node,) = bench.snapshot.gpu_nodes
    assert (node.spec.unschedulable, node.status.gpus) == (True, (USED,))


@pytest.mark.parametrize("error", [-HOUR, timedelta(0), HOUR])
def test_a_lost_way_makes_the_node_stale_in_time(bench: _Bench, error: timedelta) -> None:
    """Whatever the node's clock says: no reading, no news."""
    bench.error = error
    bench.clock.advance(10.0)
    bench.send(USED, seconds_ago=2.0)
    bench.cache.close_readings("n0")
    bench.clock.advance(40.0)
    assert bench.age_seconds == 42.0


@pytest.mark.parametrize("error", [-HOUR, timedelta(0), HOUR])
def test_the_status_takes_over_where_the_connection_is_lost(
    bench: _Bench, error: timedelta
) -> None:
    bench.error = error
    bench.write(IDLE)
    for _ in range(3):
        bench.clock.advance(10.0)
        bench.send(USED)
    bench.cache.close_readings("n0")
    bench.clock.advance(10.0)
    bench.write(SICK)
    assert bench.gpu == SICK
    assert bench.age_seconds <= 1.0
    bench.clock.advance(10.0)
    bench.send(USED)
    assert (bench.gpu, bench.age_seconds) == (USED, 0.0), "and back"


def test_a_status_that_came_before_the_connection_ended_counts_afterwards(bench: _Bench) -> None:
    """The agent gave up on a frozen operator; the operator learns of that later."""
    bench.send(USED)
    bench.clock.advance(10.0)
    bench.write(SICK)
    assert bench.gpu == USED
    bench.cache.close_readings("n0")
    assert bench.gpu == SICK


def test_a_failed_reading_keeps_its_age_on_either_way(bench: _Bench) -> None:
    """NVML failed: the figures are those of before, and the GPU takes nothing new."""
    bench.send(USED)
    bench.clock.advance(6.0)
    bench.send(SICK, seconds_ago=6.0)
    assert (bench.gpu, bench.age_seconds) == (SICK, 6.0)


def test_a_reading_of_a_node_without_an_object_is_not_kept(bench: _Bench) -> None:
    at = bench.clock.now()
    assert not bench.cache.take_reading("n7", GPUNodeStatus(observed_at=at, gpus=(IDLE,)), at)
    manifest = gpu_node_manifest("n0", IDLE, version=bench.version)
    bench.cache.apply(Kind.GPU_NODE, "DELETED", manifest)
    assert not bench.send(USED)
    assert bench.snapshot.gpu_nodes == ()


def test_an_operator_whose_clock_was_set_believes_no_old_reading(bench: _Bench) -> None:
    bench.send(USED)
    before = bench.at
    assert before is not None
    bench.cache.clock_moved(-HOUR)
    assert bench.at == before - HOUR


def test_a_status_has_its_age_on_a_clock_that_was_set(bench: _Bench) -> None:
    bench.write(USED)
    before = bench.at
    assert before is not None
    bench.cache.clock_moved(-HOUR)
    assert bench.at == before - HOUR


def test_a_status_from_before_a_restore_is_as_old_as_it_is(bench: _Bench) -> None:
    """I14: the API server's data went back, and with it what an agent wrote long ago."""
    bench.write(IDLE, seconds_ago=4800)
    assert bench.age_seconds == 4800


def test_one_reading_on_both_ways_counts_once(bench: _Bench) -> None:
    """Use is counted in readings: a status that only repeats what came directly is none."""
    job = placed(make_job())
    bench.cache.apply(Kind.JOB, "ADDED", job_manifest(job))
    bench.cache.apply(Kind.POD, "ADDED", pod_manifest(job, uid="pod-a"))
    for _ in range(5):
        bench.clock.advance(2.0)
        bench.send(USED)
        bench.write(USED)
        bench.write(USED, seconds_ago=1.0)
    (usage,) = bench.snapshot.usage.values()
    assert usage.samples == 5
    assert usage.memory_peak_bytes == 2 * GIB
