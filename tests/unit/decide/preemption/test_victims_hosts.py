"""I11: a job of higher priority gets CPU as it gets GPUs, whoever has it on the node."""

import pytest

from gpujob_api.gpujob import GPUJob
from tests.harness.builders import make_gpu, make_gpu_node, make_node
from tests.harness.hosts import Hosts, whole


def world_of(*low: GPUJob, gpus: int = 2) -> Hosts:
    """A node of 8 CPUs on which these jobs run."""
    gpu_node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = Hosts(*low, gpu_nodes=[gpu_node], nodes=[make_node("n0", cpu=8)])
    world.tick()
    assert world.running() == {one.metadata.name for one in low}
    return world


def after_a_while(world: Hosts, high: GPUJob) -> set[str]:
    world.submit(high)
    for _ in range(10):
        world.tick(10)
    return world.running()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_on_free_gpus_get_the_cpu_of_a_job_on_another(workers: int) -> None:
    world = world_of(whole("low", "8"))
    high = whole("high", "4", workers=workers, priority=5, created=2)
    assert after_a_while(world, high) == {"high"}


def test_a_worker_gets_the_cpu_of_two_jobs() -> None:
    world = world_of(whole("low0", "4"), whole("low1", "4"))
    assert after_a_while(world, whole("high", "8", priority=5, created=2)) == {"high"}


def test_a_worker_gets_the_cpu_of_a_gang() -> None:
    world = world_of(whole("low", "4", workers=2))
    assert after_a_while(world, whole("high", "8", priority=5, created=2)) == {"high"}


def test_no_more_jobs_are_stopped_than_the_cpu_needs() -> None:
    low = [whole(f"low{n}", "2") for n in range(4)]
    world = world_of(*low, gpus=5)
    high = whole("high", "4", priority=5, created=2)
    running = after_a_while(world, high)
    assert "high" in running
    assert len(running) == 3


def test_nobody_is_stopped_if_the_node_has_too_little_cpu_in_any_case() -> None:
    world = world_of(whole("low", "4"))
    assert after_a_while(world, whole("high", "9", priority=5, created=2)) == {"low"}
