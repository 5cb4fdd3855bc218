"""I11: a job of higher priority gets CPU as it gets GPUs, whoever has it on the node."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
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


def test_no_more_jobs_are_stopped_while_the_first_one_leaves() -> None:
    low = [whole(f"low{n}", "2") for n in range(4)]
    world = world_of(*low, gpus=5)
    world.stubborn = {one.metadata.name for one in low}
    world.submit(whole("high", "2", priority=5, created=2))
    for _ in range(10):
        world.tick()
    stopped = [job for job in world.snapshot.jobs if job.status.stop is not None]
    assert len(stopped) == 1
    assert f"waiting for team/{stopped[0].metadata.name} to stop" in world.why("high")


def test_a_cheap_job_on_another_model_gives_its_cpu() -> None:
    """The free GPU of the model needs CPU. So would the GPU of the older job, for a larger loss."""
    models = [make_gpu(f"GPU-{n}", index=n, model=model) for n, model in enumerate(("A", "A", "B"))]
    world = Hosts(
        whole("old", "8", models=("A",)),
        gpu_nodes=[make_gpu_node("n0", *models)],
        nodes=[make_node("n0", cpu=16)],
    )
    world.tick()
    world.submit(whole("young", "8", models=("B",), created=5000))
    world.tick(5000)
    assert world.running() == {"old", "young"}
    high = whole("high", "8", models=("A",), priority=5, created=5002)
    assert after_a_while(world, high) == {"old", "high"}
    assert world.status("old").attempt == 1


def test_nobody_takes_the_cpu_that_victims_leave_one_after_the_other() -> None:
    world = world_of(whole("low0", "4"), whole("low1", "4"), gpus=3)
    world.stubborn = {"low1"}
    world.submit(whole("high", "8", priority=5, created=2))
    world.tick()
    world.submit(whole("small", "4", created=3))
    world.tick(2)
    assert world.running() == set(), "low0 has left"
    assert world.phase("low1") is JobPhase.STOPPING
    world.stubborn = set()
    for _ in range(3):
        world.tick()
    assert world.running() == {"high"}


def on(node: str, job: GPUJob) -> GPUJob:
    spec = {**job.spec.template["spec"], "nodeSelector": {"node": node}}
    return replace(job, spec=replace(job.spec, template={**job.spec.template, "spec": spec}))


def test_a_second_worker_of_a_node_costs_only_what_it_adds() -> None:
    """It needs the CPU of the job that goes for the first worker, too."""
    gpu_nodes = [
        make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}0"), make_gpu(f"GPU-{n}1", index=1))
        for n in range(2)
    ]
    nodes = [make_node(f"n{n}", cpu=8 + 8 * n, labels={"node": f"n{n}"}) for n in range(2)]
    old = [on("n1", whole(f"old{n}", "1")) for n in range(2)]
    world = Hosts(*old, gpu_nodes=gpu_nodes, nodes=nodes)
    world.tick()
    world.submit(*(on("n0", whole(f"young{n}", "1", created=100)) for n in range(2)))
    world.tick(100)
    world.tick(500)
    high = whole("high", "4", workers=2, priority=5, created=700)
    assert after_a_while(world, high) == {"high", "old0", "old1"}
