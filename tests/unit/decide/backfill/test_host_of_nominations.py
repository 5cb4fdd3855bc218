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


def test_a_stream_of_small_jobs_leaves_the_cpu_to_the_one_that_waits() -> None:
    """I11: one of four small jobs of unknown length ends every half hour, and another one comes."""
    small = [whole(f"small{n}", "3") for n in range(GPUS)]
    world = one_node(*small)
    world.submit(whole("large", "8", created=1))
    for number in range(GPUS, GPUS + 24):
        world.submit(whole(f"small{number}", "3", created=world.seconds + 2))
        world.tick(HOUR_SECONDS / 2)
        for name in sorted(world.running() - {"large"})[:1]:
            world.end(name)
        world.tick()
        if world.phase("large") is JobPhase.RUNNING:
            break
    assert world.phase("large") is JobPhase.RUNNING
    assert world.seconds < 4 * HOUR_SECONDS


def test_a_stream_of_small_jobs_leaves_the_cpu_to_a_gang_of_which_a_part_fits() -> None:
    """I11: three workers need the CPU of both small jobs. The GPUs are free all the time."""
    world = one_node(whole("small0", "3"), whole("small1", "3"), gpus=5)
    world.submit(gang(created=2))
    world.tick(120)
    for number in range(2, 20):
        world.submit(whole(f"small{number}", "3", created=world.seconds + 2))
        world.tick(HOUR_SECONDS / 2)
        for name in sorted(world.running() - {"gang"}, key=lambda one: int(one[5:]))[:1]:
            world.end(name)
        world.tick()
        if world.phase("gang") is JobPhase.RUNNING:
            break
    assert world.phase("gang") is JobPhase.RUNNING
    assert world.seconds < 3 * HOUR_SECONDS


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
