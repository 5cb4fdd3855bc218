"""A GPUQueue says which namespaces may use it and which priorities it gives (I11, I15)."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpuqueue import GPUQueue, PriorityRange
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_queue
from tests.harness.world import World

pytestmark = pytest.mark.promise("I15")


def restricted(
    name: str = "default",
    *,
    namespaces: tuple[str, ...] | None = None,
    priority: PriorityRange | None = None,
    gpus: int | None = None,
) -> GPUQueue:
    quota: dict[str, Any] = {} if gpus is None else {"gpus": gpus}
    queue = make_queue(name, **quota)
    spec = replace(queue.spec, namespaces=namespaces, priority=priority)
    return replace(queue, spec=spec)


def whole(name: str, namespace: str = "team", **fields: Any) -> GPUJob:
    job = make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)
    return replace(job, metadata=replace(job.metadata, namespace=namespace))


def world_of(*jobs: GPUJob, queues: list[GPUQueue], gpus: int = 1) -> World:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = World(*jobs, gpu_nodes=[node], queues=queues)
    world.tick()
    return world


def test_a_queue_without_restrictions_is_open_to_everybody() -> None:
    world = world_of(whole("a", "any-namespace", priority=1_000_000), queues=[restricted()])
    assert world.running() == {"a"}


def test_a_namespace_that_the_queue_does_not_list_is_refused_by_field_value_and_queue() -> None:
    gold = restricted("gold", namespaces=("team",), gpus=8)
    world = world_of(
        whole("theirs", "other", queue="gold"), whole("ours", queue="gold"), queues=[gold], gpus=2
    )
    assert world.running() == {"ours"}
    assert world.why("theirs") == (
        "Inadmissible: spec.queue: gold: GPUQueue gold does not admit jobs of namespace other"
    )


def test_an_empty_list_of_namespaces_closes_the_queue() -> None:
    world = world_of(whole("a", queue="closed"), queues=[restricted("closed", namespaces=())])
    assert world.why("a").startswith("Inadmissible: spec.queue: closed: GPUQueue closed")


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        (11, "spec.priority: 11 is above the maximum of GPUQueue default, 10"),
        (-1, "spec.priority: -1 is below the minimum of GPUQueue default, 0"),
    ],
)
def test_a_priority_beyond_the_queues_range_is_refused(priority: int, words: str) -> None:
    queue = restricted(priority=PriorityRange(0, 10))
    world = world_of(
        whole("bounded", priority=10), whole("beyond", priority=priority), queues=[queue], gpus=2
    )
    assert world.running() == {"bounded"}
    assert world.why("beyond") == f"Inadmissible: {words}"


def test_a_job_is_admitted_once_the_queue_lets_it_in() -> None:
    world = world_of(whole("a", priority=5), queues=[restricted(priority=PriorityRange(0, 4))])
    assert world.running() == set()
    open_queue = restricted(priority=PriorityRange(0, 5))
    world.snapshot = replace(world.snapshot, queues=(open_queue,))
    world.tick()
    assert world.running() == {"a"}


def test_no_priority_preempts_a_job_of_another_queue() -> None:
    """Between queues only lent quota comes back; neither queue lends here."""
    queues = [restricted("ours", gpus=2), restricted("theirs", gpus=2)]
    world = world_of(whole("low", queue="ours"), queues=queues)
    world.submit(whole("high", "other", queue="theirs", priority=1_000_000, created=1))
    world.tick(1000)
    assert world.running() == {"low"}
    assert world.status("low").counters.preemptions == 0


def test_priority_preempts_within_a_queue_across_namespaces() -> None:
    world = world_of(whole("low"), queues=[restricted()])
    world.submit(whole("high", "other", priority=1, created=1))
    world.tick()
    assert world.running() == {"high"}


def test_a_range_that_is_empty_is_refused() -> None:
    with pytest.raises(FieldError, match="minimum: must not be above maximum, 1; got 2"):
        PriorityRange(2, 1)
