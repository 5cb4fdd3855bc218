"""A job that needs more of a node's CPU than each that ends leaves free is not passed for ever."""

from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from tests.harness.builders import make_gpu, make_gpu_node, make_node
from tests.harness.hosts import Hosts, whole

NODE_CPU, GPUS = 13, 4
HOUR_SECONDS = 3600.0


def one_node(*jobs: GPUJob, gpus: int = GPUS) -> Hosts:
    gpu_node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = Hosts(*jobs, gpu_nodes=[gpu_node], nodes=[make_node("n0", cpu=NODE_CPU)])
    world.tick()
    return world


def gang(**fields: Any) -> GPUJob:
    return whole("gang", "4", workers=3, **fields)


def starts_beside_a_stream(world: Hosts, name: str) -> bool:
    """Whether it starts within 4 hours while every half hour the oldest of the small jobs, whose
    length is unknown, ends and another one comes.
    """
    number = len(world.running())
    while world.seconds < 4 * HOUR_SECONDS:
        world.submit(whole(f"small{number}", "3", created=world.seconds + 2))
        number += 1
        world.tick(HOUR_SECONDS / 2)
        for oldest in sorted(world.running() - {name}, key=lambda one: int(one[5:]))[:1]:
            world.end(oldest)
        world.tick()
        if world.phase(name) is JobPhase.RUNNING:
            return True
    return False


def test_a_stream_of_small_jobs_leaves_the_cpu_to_the_one_that_waits() -> None:
    """I11"""
    world = one_node(*(whole(f"small{n}", "3") for n in range(GPUS)))
    world.submit(whole("large", "8", created=1))
    assert starts_beside_a_stream(world, "large")


def test_a_stream_of_small_jobs_leaves_the_cpu_to_a_gang_of_which_a_part_fits() -> None:
    """I11: three workers need the CPU of both small jobs. The GPUs are free all the time."""
    world = one_node(whole("small0", "3"), whole("small1", "3"), gpus=5)
    world.submit(gang(created=2))
    world.tick(120)
    assert starts_beside_a_stream(world, "gang")


def test_a_gang_of_which_a_part_fits_starts_once_the_others_have_left() -> None:
    world = one_node(whole("low", "4"))
    world.submit(gang(created=2))
    for _ in range(10):
        world.tick(60)
    assert "could start in about 1 s" not in world.why("gang")


def test_a_gang_of_which_a_part_fits_preempts() -> None:
    world = one_node(whole("low", "4"))
    world.submit(gang(priority=5, created=2))
    for _ in range(10):
        world.tick(10)
    assert world.running() == {"gang"}
