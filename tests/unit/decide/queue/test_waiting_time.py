"""Waiting is the time in which a job could have started (I11)."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.snapshot import RefusedPod, RefusedTemplate
from gpujob_operator.decide.model.waiting_time import arrival, waited_seconds
from tests.harness.builders import after, make_gpu, make_gpu_node, make_job, make_queue
from tests.harness.world import World

DAY = 86_400.0


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def world_of(*jobs: GPUJob, queues: tuple[GPUQueue, ...] = ()) -> World:
    world = World(*jobs, gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))], queues=queues)
    world.tick()
    return world


def edit(world: World, name: str, **spec: Any) -> None:
    def edited(job: GPUJob) -> GPUJob:
        if job.metadata.name != name:
            return job
        metadata = replace(job.metadata, generation=job.metadata.generation + 1)
        return replace(job, spec=replace(job.spec, **spec), metadata=metadata)

    world.snapshot = replace(world.snapshot, jobs=tuple(map(edited, world.snapshot.jobs)))


def closed() -> GPUQueue:
    queue = make_queue("default")
    return replace(queue, spec=replace(queue.spec, namespaces=()))


@pytest.mark.parametrize("kind", ["suspended", "no queue", "closed queue", "refused template"])
def test_a_job_that_could_not_start_for_days_does_not_pass_those_that_waited(kind: str) -> None:
    """It would be overdue otherwise."""
    queue = "late" if kind == "no queue" else "default"
    job = whole("held", suspend=kind == "suspended", queue=queue)
    world = World(job, gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))])
    queues = (closed(),) if kind == "closed queue" else ()
    refused = RefusedTemplate(job.metadata.uid, "no", after(4 * DAY))
    templates = (refused,) if kind == "refused template" else ()
    world.snapshot = replace(world.snapshot, queues=queues, refused_templates=templates)
    world.tick()
    assert world.status("held").held_back_since is not None
    world.tick(3 * DAY)
    assert waited_seconds(world.job("held"), world.now) <= 1.0
    # A closed queue opens again for this one.
    world.snapshot = replace(world.snapshot, queues=())
    world.submit(whole("tenant", created=3 * DAY, priority=1))
    world.tick()
    assert world.running() == {"tenant"}
    world.submit(whole("waits", created=3 * DAY + 1))
    world.tick(10)
    edit(world, "held", suspend=False, queue="default")
    world.snapshot = replace(world.snapshot, refused_templates=())
    world.tick(10)
    assert world.status("held").held_back_since is None
    world.end("tenant")
    world.tick()
    assert world.running() == {"waits"}


def test_what_it_waited_before_counts() -> None:
    world = world_of(whole("tenant", created=-1), whole("early", created=0))
    world.tick(1000)
    edit(world, "early", suspend=True)
    world.tick(0)
    world.tick(500)
    edit(world, "early", suspend=False)
    world.tick(0)
    assert arrival(world.job("early")) == after(500)
    world.tick(100)
    assert waited_seconds(world.job("early"), world.now) == 1101.0


def test_an_attempt_whose_pods_were_refused_was_no_waiting() -> None:
    """Nor are all of them, while what they need is missing for days."""
    world = World(whole("j"), gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))])
    world.step()
    assert world.status("j").attempt == 1
    world.seconds = 3 * DAY
    world.change("j", attempt_started_at=after(0))
    refused = (RefusedPod(world.job("j").metadata.uid, 1, 0, "no such claim"),)
    world.snapshot = replace(world.snapshot, refused_pods=refused, pods=())
    for _ in range(4):
        world.step()
    assert world.status("j").placement is None
    assert arrival(world.job("j")) == after(3 * DAY)
