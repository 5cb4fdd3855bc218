"""An edit of a running job's queue or priority is asked what admission asks (I15)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJob, GPUJobSpec, Sharing, SharingMode
from gpujob_api.gpuqueue import GPUQueue, PriorityRange
from gpujob_operator.decide.model.conditions import EDIT_REJECTED, find
from tests.harness.builders import (
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_queue,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.world import World

GIB = 1024**3


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def gold(namespaces: tuple[str, ...] | None = ("gold",), gpus: int = 2) -> GPUQueue:
    queue = make_queue("gold", gpus=gpus)
    spec = replace(queue.spec, namespaces=namespaces, priority=PriorityRange(0, 10))
    return replace(queue, spec=spec)


def world_of(*jobs: GPUJob, queues: tuple[GPUQueue, ...], gpus: int = 8) -> World:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = World(*jobs, gpu_nodes=[node], queues=queues)
    world.tick()
    return world


def edit(world: World, change: Callable[[GPUJobSpec], GPUJobSpec], *names: str) -> None:
    """As an editor of the spec does it: the generation rises."""

    def edited(job: GPUJob) -> GPUJob:
        if job.metadata.name not in names:
            return job
        metadata = replace(job.metadata, generation=job.metadata.generation + 1)
        return replace(job, spec=change(job.spec), metadata=metadata)

    world.snapshot = replace(world.snapshot, jobs=tuple(map(edited, world.snapshot.jobs)))
    world.tick()


def reserved(world: World) -> dict[str, int]:
    return {one.metadata.name: one.status.reserved_gpus for one in world.snapshot.queues}


def said(world: World, name: str) -> str:
    found = find(world.status(name), EDIT_REJECTED)
    return f"{found.reason}: {found.message}" if found is not None else ""


def test_a_queue_that_does_not_admit_a_running_job_gives_it_no_quota() -> None:
    queues = (make_queue("default", gpus=2), gold())
    world = world_of(*(whole(f"f{n}", namespace="evil") for n in range(2)), queues=queues)
    edit(world, lambda spec: replace(spec, queue="gold", priority=1_000_000), "f0", "f1")
    world.submit(whole("f2", namespace="evil"), whole("g", namespace="gold", queue="gold"))
    world.tick()
    assert world.running() == {"f0", "f1", "g"}
    assert reserved(world) == {"default": 2, "gold": 1}
    assert said(world, "f0") == (
        "Inadmissible: spec.queue: gold: GPUQueue gold does not admit jobs of namespace evil; "
        "the attempt runs on and uses the quota of queue default until it ends; set spec.queue "
        "back to default, or name another queue"
    )
    edit(world, lambda spec: replace(spec, queue="default", priority=0), "f0", "f1")
    assert said(world, "f0") == ""
    world.end("f0")
    world.tick()
    assert world.running() == {"f1", "f2", "g"}


def test_the_next_attempt_is_not_admitted_either() -> None:
    queues = (make_queue("default", gpus=2), gold())
    world = world_of(whole("f", namespace="evil"), queues=queues)
    edit(world, lambda spec: replace(spec, queue="gold"), "f")
    world.end("f", 1)
    world.tick()
    world.tick(1000)
    assert world.why("f").startswith("Inadmissible")
    assert said(world, "f") == ""
    assert reserved(world) == {"default": 0, "gold": 0}


def test_a_running_job_moves_to_a_queue_that_admits_it_once_there_is_quota() -> None:
    queues = (make_queue("default", gpus=2), gold(namespaces=None, gpus=1))
    world = world_of(whole("a"), whole("own", queue="gold"), queues=queues)
    edit(world, lambda spec: replace(spec, queue="gold"), "a")
    assert reserved(world) == {"default": 1, "gold": 1}
    assert said(world, "a").startswith(
        "OverQuota: spec.queue: gold: queue gold uses 1 of 1 GPUs, needs 1 more; the attempt runs "
    )
    world.end("own")
    world.tick()
    assert reserved(world) == {"default": 0, "gold": 1}
    assert said(world, "a") == ""
    assert world.status("a").attempt == 1


def test_a_pending_job_of_the_queue_comes_before_one_that_moves_there() -> None:
    queues = (make_queue("default", gpus=2), gold(namespaces=None, gpus=1))
    world = world_of(whole("a"), queues=queues)
    world.submit(whole("own", queue="gold"))
    edit(world, lambda spec: replace(spec, queue="gold"), "a")
    assert world.running() == {"a", "own"}
    assert reserved(world) == {"default": 1, "gold": 1}


def test_a_priority_beyond_the_queues_range_does_not_save_a_running_job() -> None:
    queues = (gold(namespaces=None),)
    world = world_of(whole("low", queue="gold"), queues=queues, gpus=1)
    edit(world, lambda spec: replace(spec, priority=1_000_000), "low")
    assert said(world, "low").startswith(
        "PriorityCapped: spec.priority: 1000000 is not given by GPUQueue gold: it counts as 10"
    )
    world.submit(whole("equal", queue="gold", priority=10))
    world.tick()
    assert world.running() == {"low"}
    edit(world, lambda spec: replace(spec, priority=9), "low")
    assert world.running() == {"equal"}


def test_who_has_no_record_of_its_queue_counts_in_one_that_admits_it() -> None:
    """An attempt that was placed before statuses named the queue."""
    queues = (make_queue("default", gpus=1), gold())
    world = world_of(whole("f", namespace="evil"), queues=queues)
    world.change("f", queue=None)
    edit(world, lambda spec: replace(spec, queue="gold"), "f")
    assert reserved(world) == {"default": 0, "gold": 0}
    assert "counts in no queue" in said(world, "f")


# -- edits of the queue


def test_a_running_job_reports_that_its_queue_is_gone() -> None:
    world = world_of(whole("a", namespace="gold", queue="gold"), queues=(gold(),))
    assert said(world, "a") == ""
    queues = world.snapshot.queues
    world.snapshot = replace(world.snapshot, queues=())
    world.tick()
    assert world.running() == {"a"}
    assert said(world, "a") == (
        "QueueNotFound: spec.queue: GPUQueue 'gold' does not exist; existing queues: default; the "
        "attempt runs on, and gives its GPUs back to the queues that have quota; create the queue "
        "again, or set spec.queue to another one"
    )
    world.snapshot = replace(world.snapshot, queues=queues)
    world.tick()
    assert said(world, "a") == ""


def test_a_running_job_reports_that_its_queue_no_longer_admits_its_namespace() -> None:
    world = world_of(
        whole("a", namespace="gold", queue="gold"),
        whole("b", namespace="gold", queue="gold"),
        queues=(gold(),),
    )
    world.snapshot = replace(world.snapshot, queues=(gold(namespaces=()),))
    world.tick()
    assert world.running() == {"a", "b"}
    assert reserved(world) == {"gold": 2}
    assert said(world, "a") == (
        "Inadmissible: spec.queue: gold: GPUQueue gold does not admit jobs of namespace gold; the "
        "attempt runs on in it, and the job is not admitted again; set spec.queue to a queue that "
        "admits it"
    )
    world.snapshot = replace(world.snapshot, queues=(gold(),))
    world.tick()
    assert said(world, "a") == ""


def test_nobody_joins_a_running_job_that_is_edited_to_be_alone() -> None:
    """What shares its GPU stays until its next attempt."""
    used = measured(3 * GIB, 5, 5.0)
    held = reserve(4 * GIB, utilization_percent=5.0)
    beside = running(make_job("beside", created=1), held=held, measurement=used)
    first = running(make_job("first"), held=held, measurement=used)
    world = World(
        first, beside, gpu_nodes=[make_gpu_node("n0")], pods=[make_pod(first), make_pod(beside)]
    )
    newcomers = [
        with_status(make_job(name, created=2), measurement=used) for name in ("joins", "later")
    ]
    world.submit(newcomers[0])
    world.tick(5)
    assert world.running() == {"first", "beside", "joins"}
    edit(world, lambda spec: replace(spec, sharing=Sharing(SharingMode.EXCLUSIVE, 10)), "first")
    world.submit(newcomers[1])
    world.tick(5)
    assert world.running() == {"first", "beside", "joins"}
    edit(world, lambda spec: replace(spec, sharing=Sharing(SharingMode.AUTO, 10)), "first")
    assert world.running() == {"first", "beside", "joins", "later"}
