"""A parent that is missing, or that goes in a circle, lends nothing, and the queue says so."""

from dataclasses import replace
from itertools import pairwise

from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model.conditions import ACCEPTED, find
from gpujob_operator.decide.queue.tree import QueueTree
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_queue
from tests.harness.world import World


def world_of(*queues: GPUQueue) -> World:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(4)))
    world = World(make_job("j", queue=queues[0].metadata.name), gpu_nodes=[node], queues=queues)
    world.tick()
    return world


def accepted(world: World, name: str) -> tuple[ConditionStatus, str, str]:
    queue = next(one for one in world.snapshot.queues if one.metadata.name == name)
    found = find(queue.status, ACCEPTED)
    assert found is not None
    return found.status, found.reason, found.message


def test_a_child_of_a_missing_parent_gets_nothing_until_the_parent_is_there() -> None:
    child = make_queue("child", parent="lab", borrow=3)
    world = world_of(child)
    assert world.why("j").startswith(
        "OverQuota: queue child uses 0 of 0 GPUs, needs 1 more; spec.parent: GPUQueue 'lab'"
    )
    assert accepted(world, "child") == (
        ConditionStatus.FALSE,
        "ParentNotFound",
        "spec.parent: GPUQueue 'lab' does not exist: create it or change the field; until then "
        "the queue has what its own spec.nominal says and borrows nothing",
    )
    queues = (*world.snapshot.queues, make_queue("lab", gpus=2))
    world.snapshot = replace(world.snapshot, queues=queues)
    world.tick()
    assert world.running() == {"j"}
    assert accepted(world, "child") == (ConditionStatus.TRUE, "Valid", "the parent counts")


def test_a_child_keeps_what_it_has_itself_without_its_parent() -> None:
    world = world_of(make_queue("child", parent="lab", gpus=1, borrow=3))
    assert world.running() == {"j"}
    world.submit(make_job("more", queue="child"))
    world.tick()
    assert world.running() == {"j"}


def test_parents_in_a_circle_are_named_in_each_of_their_queues() -> None:
    world = world_of(
        make_queue("a", parent="b"), make_queue("b", parent="c"), make_queue("c", parent="a")
    )
    assert world.running() == set()
    for name in "abc":
        status, reason, message = accepted(world, name)
        assert (status, reason) == (ConditionStatus.FALSE, "ParentCircular")
        assert "a -> b -> c -> a: change spec.parent of one of them" in message


def test_a_tree_may_have_any_depth() -> None:
    """The quota of each queue above bounds those below it."""
    names = [f"q{n}" for n in range(40)]
    queues = [make_queue("q0", gpus=1)]
    queues += [make_queue(name, parent=up) for up, name in pairwise(names)]
    world = world_of(*reversed(queues))
    world.submit(make_job("more", queue="q20"))
    world.tick()
    assert world.running() == {"j"}
    assert world.why("more") == (
        "OverQuota: queue q0 uses 1 of 1 GPUs, needs 1 more; "
        "position 1 of the jobs waiting for GPUs"
    )


def test_queues_below_a_circle_are_ordinary_children() -> None:
    queues = [make_queue("a", parent="b", gpus=2), make_queue("b", parent="a")]
    queues.append(make_queue("c", parent="a"))
    tree = QueueTree({queue.metadata.name: queue for queue in queues})
    assert sorted(tree.problems) == ["a", "b"]
    assert tree.path("c") == ("c", "a")
