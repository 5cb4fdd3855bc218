"""A job that pauses after a failure shows that failure, whatever was in its way meanwhile."""

from dataclasses import replace
from typing import Any

from tests.harness.builders import make_job, make_queue
from tests.harness.world import World


def failed() -> World:
    world = World(make_job("job"))
    world.tick()
    world.end("job", exit_code=3)
    world.tick()
    assert "exited with code 3" in world.why("job")
    return world


def edit(world: World, **spec: Any) -> None:
    job = world.job("job")
    metadata = replace(job.metadata, generation=job.metadata.generation + 1)
    job = replace(job, spec=replace(job.spec, **spec), metadata=metadata)
    world.snapshot = replace(world.snapshot, jobs=(job,))
    world.tick()


def said(world: World) -> str:
    text = world.why("job")
    assert text.startswith("BackingOff: ")
    return text


def test_after_a_suspension() -> None:
    world = failed()
    before = said(world)
    edit(world, suspend=True)
    assert "spec.suspend is true" in world.why("job")
    edit(world, suspend=False)
    assert "exited with code 3" in said(world)
    world.tick()
    assert "exited with code 3" in said(world)
    assert "suspend" not in before + said(world)


def test_after_its_queue_was_created() -> None:
    world = failed()
    edit(world, queue="research")
    assert world.why("job").startswith("QueueNotFound")
    world.snapshot = replace(world.snapshot, queues=(make_queue("research", gpus=4),))
    world.tick()
    assert "exited with code 3" in said(world)


def test_after_the_end_of_another_container() -> None:
    world = World(make_job("job"))
    world.tick()
    world.stubborn.add("job")
    world.snapshot = replace(
        world.snapshot, pods=tuple(replace(pod, exit_code=3) for pod in world.snapshot.pods)
    )
    world.tick()
    world.tick()
    assert world.why("job").startswith("PreviousAttemptTerminating: waiting for job-1-0 to end")
    world.stubborn.clear()
    world.tick()
    world.tick()
    assert "exited with code 3" in said(world)
