"""An attempt whose node went away is told apart from other interruptions, in the whole plan."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import Counters, JobPhase
from tests.harness.builders import make_gpu, make_gpu_node, make_job
from tests.harness.world import World


def world_of_two() -> World:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    world = World(make_job("a"), gpu_nodes=nodes)
    world.tick(30)
    assert world.phase("a") is JobPhase.RUNNING
    return world


@pytest.mark.parametrize("goes", [True, False])
def test_only_a_node_that_is_gone_counts_as_lost(goes: bool) -> None:
    world = world_of_two()
    placement = world.status("a").placement
    assert placement is not None
    name = placement.workers[0].node
    gone = {name} if goes else set[str]()
    world.snapshot = replace(
        world.snapshot,
        pods=(),
        nodes=tuple(node for node in world.snapshot.nodes if node.name not in gone),
        gpu_nodes=tuple(n for n in world.snapshot.gpu_nodes if n.metadata.name not in gone),
    )
    world.tick(30)
    wanted = Counters(node_lost=1, fruitless=1) if goes else Counters(interruptions=1, fruitless=1)
    assert world.status("a").counters == wanted
    assert world.phase("a") is JobPhase.RUNNING
    if goes:
        assert world.gpus("a") == {f"GPU-{1 - int(name[1])}"}
