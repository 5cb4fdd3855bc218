"""A quota of GPU memory, where GPUs of one model are within it and those of another are not."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpuqueue import GPUQueue, Quota
from gpujob_api.quantities import GIB, FleetMemory
from tests.harness.builders import (
    MODEL,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_queue,
    make_template,
)
from tests.harness.world import World

pytestmark = pytest.mark.promise("I11")

LARGE = "NVIDIA H100"


def world_of(*queues: GPUQueue, **large: Any) -> World:
    """One GPU of 24 GiB on n0, two of 80 GiB on n1. `large` has the fields of node n1."""
    gpus = (make_gpu(f"GPU-1{n}", index=n, model=LARGE, total=80 * GIB) for n in range(2))
    return World(
        gpu_nodes=[make_gpu_node("n0", make_gpu()), make_gpu_node("n1", *gpus)],
        nodes=[make_node("n0"), make_node("n1", **large)],
        queues=queues,
    )


def of_memory(queue: GPUQueue, gibibytes: int) -> GPUQueue:
    quota = Quota(gpu_memory=FleetMemory(gibibytes * GIB))
    return replace(queue, spec=replace(queue.spec, nominal=quota))


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


PREFERS_LARGE: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {
                        "matchExpressions": [{"key": "size", "operator": "In", "values": ["large"]}]
                    },
                }
            ]
        }
    }
}


@pytest.mark.parametrize("gibibytes", [24, 79])
@pytest.mark.parametrize(
    ("large", "template"),
    [
        ({"spot": True}, make_template()),
        ({"labels": {"size": "large"}}, make_template(**PREFERS_LARGE)),
    ],
    ids=["spot", "preferred"],
)
def test_a_job_starts_on_the_model_that_its_quota_holds(
    gibibytes: int, large: dict[str, Any], template: dict[str, Any]
) -> None:
    world = world_of(of_memory(make_queue("default"), gibibytes), **large)
    world.submit(whole("job", template=template))
    world.tick()
    assert world.gpus("job") == {"GPU-0"}


def test_it_starts_there_as_well_while_others_use_a_part_of_the_quota() -> None:
    world = world_of(of_memory(make_queue("default"), 110), spot=True)
    world.submit(whole("large", models=(LARGE,)))
    world.tick()
    world.submit(whole("job", created=1.0))
    world.tick()
    assert world.gpus("job") == {"GPU-0"}


def test_it_waits_for_that_model_and_gets_it_back() -> None:
    """Neither the free GPUs of the other model nor their size count."""
    queues = (
        of_memory(make_queue("all"), 48),
        of_memory(make_queue("owner", parent="all"), 24),
        of_memory(make_queue("borrower", parent="all"), 0),
    )
    world = world_of(*queues)
    world.submit(whole("lent", queue="borrower", models=(MODEL,)))
    world.tick()
    world.stubborn = {"lent"}
    world.submit(whole("mine", queue="owner", created=1.0))
    world.tick()
    assert world.why("mine").startswith("Preempting: waiting for team/lent to stop")
    world.end("lent")
    world.tick()
    assert world.gpus("mine") == {"GPU-0"}
    world.submit(whole("next", queue="borrower", created=2.0))
    world.tick()
    assert "; queue borrower has quota for NVIDIA A10 only" in world.why("next")
