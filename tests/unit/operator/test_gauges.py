"""Gauges say what the snapshot says, and nothing of what is gone."""

from dataclasses import replace

from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.snapshot import SpotPool
from gpujob_operator.telemetry.gauges import Gauges
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_queue,
    make_snapshot,
    reserve,
    running,
)

GPU = {"node": "n0", "gpu": "GPU-0"}


def test_gpus_jobs_and_stale_nodes() -> None:
    metrics = Metrics()
    gauges = Gauges(metrics)
    value = metrics.registry.get_sample_value
    jobs = [running(make_job(name), held=reserve(3 * GIB)) for name in ("a", "b")]
    node = make_gpu_node("n0", make_gpu(unmanaged=GIB), at=0)
    snapshot = make_snapshot(*jobs, make_job("waiting"), gpu_nodes=[node])
    gauges.update(snapshot, after(5))
    assert value("gpujob_gpu_memory_reserved_bytes", GPU) == 6 * GIB
    assert value("gpujob_gpu_memory_used_bytes", GPU) == GIB
    assert value("gpujob_jobs", {"phase": "Running"}) == 2
    assert value("gpujob_jobs", {"phase": "Pending"}) == 1
    assert value("gpujob_stale_nodes") == 0
    other = make_snapshot(gpu_nodes=[make_gpu_node("n1", at=0)])
    gauges.update(other, after(100))
    assert value("gpujob_jobs", {"phase": "Running"}) == 0
    assert value("gpujob_gpu_memory_used_bytes", GPU) is None
    assert value("gpujob_stale_nodes") == 1


def test_before_the_first_cycle_there_is_nothing() -> None:
    metrics = Metrics()
    Gauges(metrics)
    value = metrics.registry.get_sample_value
    assert value("gpujob_stale_nodes") == 0
    assert b"\ngpujob_jobs{" not in metrics.text()
    assert b"\ngpujob_gpu_memory_used_bytes{" not in metrics.text()
    assert b"\ngpujob_queue_pending_jobs{" not in metrics.text()


def test_what_each_queue_has_and_for_how_long_its_jobs_wait() -> None:
    """Only of queues that exist: a job may name any."""
    metrics = Metrics()
    jobs = [
        running(make_job("a", queue="vision"), ("n0", ("GPU-0", "GPU-1"))),
        make_job("b", queue="vision", created=40),
        make_job("c", queue="vision", created=10),
        make_job("d", queue="nobodys"),
    ]
    queues = (make_queue("vision", gpus=4), make_queue("text"))
    Gauges(metrics).update(make_snapshot(*jobs, queues=queues), after(100))

    def value(name: str, queue: str) -> float | None:
        return metrics.registry.get_sample_value(f"gpujob_queue_{name}", {"queue": queue})

    names = ("nominal_gpus", "reserved_gpus", "pending_jobs", "longest_wait_seconds")
    assert [value(name, "vision") for name in names] == [4, 2, 2, 90]
    assert [value(name, "text") for name in names] == [None, 0, 0, 0]
    assert value("pending_jobs", "default") == 0
    assert value("pending_jobs", "nobodys") is None


def test_how_busy_a_gpu_is() -> None:
    metrics = Metrics()
    gpu = replace(make_gpu(), utilization_percent=40.0)
    Gauges(metrics).update(make_snapshot(gpu_nodes=[make_gpu_node("n0", gpu)]), after(0))
    assert metrics.registry.get_sample_value("gpujob_gpu_utilization_ratio", GPU) == 0.4


def test_spot_pools() -> None:
    metrics = Metrics()
    pool = SpotPool("p4d.24xlarge/zone-a", node_hours=12, interruptions=3)
    Gauges(metrics).update(make_snapshot(spot_pools=(pool,)), after(0))
    value, labels = metrics.registry.get_sample_value, {"pool": pool.name}
    assert value("gpujob_spot_node_hours", labels) == 12
    assert value("gpujob_spot_interruptions", labels) == 3


def test_a_node_that_is_gone_is_not_stale() -> None:
    """Its GPUNode stays until somebody deletes it; an alert would never end."""
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    snapshot = make_snapshot(gpu_nodes=[make_gpu_node("n0", make_gpu(unmanaged=GIB), at=0)])
    gauges = Gauges(metrics)
    gauges.update(snapshot, after(100))
    assert value("gpujob_stale_nodes") == 1
    gauges.update(replace(snapshot, nodes=()), after(100))
    assert value("gpujob_stale_nodes") == 0
    assert value("gpujob_gpu_memory_used_bytes", GPU) is None


def test_a_node_that_lost_its_label_is_not_stale() -> None:
    """Its agent went with the label."""
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    nodes = [make_node("n0", managed=False)]
    snapshot = make_snapshot(gpu_nodes=[make_gpu_node("n0", make_gpu(), at=0)], nodes=nodes)
    Gauges(metrics).update(snapshot, after(100))
    assert value("gpujob_stale_nodes") == 0
    assert value("gpujob_gpu_memory_used_bytes", GPU) == 0
