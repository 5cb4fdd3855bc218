"""I11: a gang that is spread by `maxSkew` preempts, and GPUs are kept for it, as for any other."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_node, make_template
from tests.harness.world import World

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES = 2


def gang(key: str, **fields: Any) -> GPUJob:
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "gang"}},
    }
    template = make_template(topologySpreadConstraints=[constraint])
    template["metadata"] = {"labels": {"app": "gang"}}
    return make_job(
        "gang", template=template, workers=4, sharing=SharingMode.EXCLUSIVE, created=2, **fields
    )


def small(number: int, created: float = 0) -> GPUJob:
    return make_job(f"small{number}", sharing=SharingMode.EXCLUSIVE, created=created)


def full() -> World:
    """Two nodes in two zones, with a small job on each of their four GPUs."""
    gpu_nodes = [
        make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}0"), make_gpu(f"GPU-{n}1", index=1))
        for n in range(NODES)
    ]
    nodes = [make_node(f"n{n}", labels={ZONE: f"z{n}", HOST: f"n{n}"}) for n in range(NODES)]
    world = World(*(small(n) for n in range(4)), gpu_nodes=gpu_nodes, nodes=nodes)
    world.tick()
    return world


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_it_preempts(key: str) -> None:
    world = full()
    world.submit(gang(key, priority=5))
    for _ in range(10):
        world.tick(10)
    assert world.running() == {"gang"}


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_a_stream_of_small_jobs_does_not_starve_it(key: str) -> None:
    world = full()
    world.submit(gang(key))
    for number in range(4, 40):
        world.tick(60)
        if world.phase("gang") is JobPhase.RUNNING:
            break
        for name in sorted(world.running(), key=lambda one: int(one[5:]))[:1]:
            world.end(name)
        world.submit(small(number, created=world.seconds))
    assert world.phase("gang") is JobPhase.RUNNING
