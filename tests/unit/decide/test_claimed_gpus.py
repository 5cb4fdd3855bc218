"""Two nodes say that a GPU of the same UUID is theirs: each has one, and neither is the other."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, SharingMode
from gpujob_api.gpunode import GPUNode
from gpujob_api.quantities import GIB
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    MODEL,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
    used,
    with_status,
)
from tests.harness.world import World

pytestmark = pytest.mark.promise("I11")

OTHER_MODEL = "NVIDIA L4"


def two_nodes(*uuids: str, models: tuple[str, str] = (MODEL, OTHER_MODEL)) -> list[GPUNode]:
    """With the same UUIDs; the second by name comes later in every order."""
    return [
        make_gpu_node(name, *(make_gpu(uuid, index=n, model=model) for n, uuid in enumerate(uuids)))
        for name, model in zip(("n0", "n9"), models, strict=True)
    ]


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, models=(MODEL,), **fields)


def beside_a_long_wait() -> World:
    """Both GPUs of the first node are kept for a job that waits for one of them."""
    world = World(whole("busy"), gpu_nodes=two_nodes("GPU-a", "GPU-b"))
    world.tick()
    world.change("busy", measurement=replace(measured(4 * GIB), steps_total=100_000))
    world.submit(whole("large", gpus_per_worker=2, created=1))
    world.tick(100)
    return world


def test_gpus_kept_for_a_long_wait_are_those_of_their_node() -> None:
    """I11: otherwise an agent that says it has the same GPUs lets later jobs overtake."""
    world = beside_a_long_wait()
    later = make_job("later", models=(MODEL,), created=101)
    world.submit(with_status(later, measurement=measured(4 * GIB, utilization_percent=10.0)))
    world.tick()
    assert world.running() == {"busy"}
    assert "nominated for an earlier job" in world.why("later")


def test_gpus_kept_on_one_node_are_open_on_the_other() -> None:
    """I11: nobody waits for a GPU that nobody is kept for."""
    world = beside_a_long_wait()
    world.submit(make_job("later", models=(OTHER_MODEL,), created=101))
    world.tick()
    assert world.running() == {"busy", "later"}


def test_gpus_cleared_for_a_higher_priority_are_those_of_their_node() -> None:
    """I11: what is preempted for a job is kept for that job, whoever says the same UUID."""
    world = World(whole("low"), gpu_nodes=two_nodes("GPU-a"))
    world.tick()
    world.submit(whole("high", priority=5, created=1))
    world.submit(make_job("small", models=(OTHER_MODEL,), created=2))
    decided = statuses(world.step().items)
    assert decided["low"].phase is JobPhase.STOPPING
    assert decided["small"].placement is not None
    world.tick()
    assert (world.phase("high"), world.phase("low")) == (JobPhase.RUNNING, JobPhase.PENDING)


@pytest.mark.promise("I15")
def test_equal_gpus_of_two_models_can_be_compared() -> None:
    """I15: the earliest of two that are ready at the same time, with as much free memory."""
    models = (MODEL, OTHER_MODEL)
    jobs = [make_job(f"busy{n}", sharing=SharingMode.EXCLUSIVE) for n in range(2)]
    world = World(*jobs, gpu_nodes=two_nodes("GPU-a"))
    world.tick()
    assert world.running() == {"busy0", "busy1"}
    world.submit(make_job("late", sharing=SharingMode.EXCLUSIVE, models=models, created=1))
    world.tick(100)
    assert world.phase("late") is JobPhase.PENDING


def grown(*places: tuple[str, str]) -> dict[str, GPUJobStatus]:
    """One plan of a job at each place that reserves 8 GiB and was seen to use 21."""
    jobs = [
        running(make_job(f"job{n}"), (node, (uuid,)), held=reserve(8 * GIB))
        for n, (node, uuid) in enumerate(places)
    ]
    pods = [make_pod(job) for job in jobs]
    snapshot = make_snapshot(
        *jobs,
        pods=pods,
        gpu_nodes=[
            make_gpu_node(node, make_gpu(uuid, ours=[(pod.uid, 21 * GIB)]))
            for (node, uuid), pod in zip(places, pods, strict=True)
        ],
        usage={(job.metadata.uid, 1): used(21 * GIB) for job in jobs},
        reports=tuple(received(job, make_report()) for job in jobs),
    )
    return statuses(plan(snapshot, after(1)).items)


def test_what_a_job_grows_by_is_given_on_its_node() -> None:
    """I1: another node's GPU has as much free as before."""
    found = grown(("n0", "GPU-a"), ("n9", "GPU-a"))
    apart = grown(("n0", "GPU-a"), ("n9", "GPU-b"))
    held = [one.reservation for one in apart.values()]
    assert [one.reservation for one in found.values()] == held
    assert [one.memory_bytes > 23 * GIB for one in held if one is not None] == [True, True]
