"""Jobs that wait in vain use up no searches of those that may stop others."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.quantities import GIB
from gpujob_operator.decide.capacity.cluster import SCANS_MAX, ClusterSize
from tests.harness.builders import MODEL, make_gpu, make_gpu_node, make_job, make_queue
from tests.harness.world import World

LARGE = "NVIDIA H100"
NODES = [
    make_gpu_node("n0", make_gpu()),
    make_gpu_node("n1", *(make_gpu(f"GPU-1{n}", index=n, model=LARGE) for n in range(4))),
]


def whole(name: str, model: str = MODEL, **fields: Any) -> GPUJob:
    return make_job(name, models=(model,), sharing=SharingMode.EXCLUSIVE, **fields)


@pytest.mark.parametrize("count", [4, 8, 20])
@pytest.mark.parametrize("seconds", [5, 120])
def test_a_job_preempts_behind_many_of_higher_priority_that_find_nobody(
    count: int, seconds: int
) -> None:
    world = World(
        whole("low"), whole("large", LARGE, gpus_per_worker=4, priority=9), gpu_nodes=NODES
    )
    world.tick()
    world.submit(
        *(whole(f"alike{n}", LARGE, gpus_per_worker=4, priority=8) for n in range(count)),
        whole("high", priority=5, created=1.0),
    )
    world.tick(seconds)
    world.tick()
    assert world.running() == {"large", "high"}


@pytest.mark.parametrize("seconds", [5, 120])
def test_a_queue_gets_its_quota_back_behind_another_ones_many_kinds_of_jobs(seconds: int) -> None:
    queues = (
        make_queue("all", gpus=60),
        make_queue("crowd", parent="all", gpus=50),
        make_queue("owner", parent="all", gpus=4),
        make_queue("borrower", parent="all", gpus=0),
        make_queue("other", gpus=4),
    )
    world = World(
        whole("lent", queue="borrower"),
        whole("large", LARGE, queue="other", gpus_per_worker=4),
        gpu_nodes=NODES,
        queues=queues,
    )
    world.tick()
    kinds = (
        whole(
            f"kind{n}",
            LARGE,
            queue="crowd",
            priority=8,
            gpus_per_worker=3 + n % 2,
            memory_bytes=n * GIB,
        )
        for n in range(1, 21)
    )
    world.submit(*kinds, whole("mine", queue="owner", created=1.0))
    world.tick(seconds)
    world.tick()
    assert world.running() == {"large", "mine"}


def test_scans_read_no_more_than_so_many_gpus() -> None:
    assert ClusterSize(1000, 0).scans(32_000, 4) == 32
    assert ClusterSize(100_000, 0).scans(32_000, 4) == 4
    assert ClusterSize(0, 0).scans(32_000, 4) == SCANS_MAX
