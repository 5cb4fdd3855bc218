"""Whoever waits for a job that is being stopped waits until its deadline, and then goes on."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import LATE_SECONDS
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_queue,
)
from tests.harness.world import World

GRACE_SECONDS = float(Configuration().termination_grace_seconds)
OVER_SECONDS = GRACE_SECONDS + LATE_SECONDS + 1


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def world_of(*jobs: GPUJob, gpus: int = 2, quota: int | None = 2) -> World:
    """A node for each GPU, and a quota of so many GPUs."""
    readings = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(gpus)]
    queues = [make_queue("default", gpus=quota)] if quota is not None else []
    world = World(*jobs, gpu_nodes=readings, queues=queues)
    world.tick()
    assert world.running() == {job.metadata.name for job in jobs}
    return world


def dies(world: World, name: str) -> None:
    """The node of the job does not answer any more, and its pods end no more."""
    placement = world.status(name).placement
    assert placement is not None
    lost = placement.workers[0].node
    world.snapshot = replace(
        world.snapshot,
        nodes=tuple(
            make_node(node.name, ready=False, not_ready_since=world.now)
            if node.name == lost
            else node
            for node in world.snapshot.nodes
        ),
    )
    world.stubborn.add(name)


def suspends(world: World, name: str) -> None:
    jobs = (
        replace(job, spec=replace(job.spec, suspend=True)) if job.metadata.name == name else job
        for job in world.snapshot.jobs
    )
    world.snapshot = replace(world.snapshot, jobs=tuple(jobs))


@pytest.mark.parametrize("answers", [True, False], ids=["stuck", "dead node"])
def test_a_suspended_job_that_does_not_end_blocks_nobody(answers: bool) -> None:
    world = world_of(whole("stuck"), whole("low"), gpus=3)
    dies(world, "stuck")
    if answers:
        world.snapshot = replace(world.snapshot, nodes=tuple(map(make_node, ("n0", "n1", "n2"))))
    suspends(world, "stuck")
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert world.phase("stuck") is JobPhase.STOPPING
    words = "Preempting: waiting for team/stuck to stop (Suspended)"
    assert world.why("high").startswith(words)
    world.tick(GRACE_SECONDS)
    assert "low" in world.running(), "a kubelet takes a moment"
    world.tick(LATE_SECONDS)
    assert world.running() == {"high"}
    assert world.status("low").counters.preemptions == 1


def test_for_a_suspended_job_that_ends_nobody_is_preempted() -> None:
    world = world_of(whole("leaves"), whole("low"))
    suspends(world, "leaves")
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert world.running() == {"low", "high"}


@pytest.mark.parametrize("quota", [2, None], ids=["quota", "GPUs"])
def test_for_a_job_that_has_just_ended_nobody_is_preempted(quota: int | None) -> None:
    world = world_of(whole("done"), whole("low"), quota=quota)
    world.end("done")
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert world.running() == {"low", "high"}


def test_a_job_on_a_node_that_does_not_answer_is_no_victim() -> None:
    """It would be stopped, and give nothing."""
    world = world_of(whole("lost"), whole("low"), gpus=3)
    world.tick(100)
    dies(world, "lost")
    world.change("low", attempt_started_at=after(0))
    world.change("lost", attempt_started_at=world.now)
    world.submit(whole("high", priority=5, created=101))
    world.tick()
    assert world.running() == {"lost", "high"}
    assert world.phase("lost") is JobPhase.RUNNING


@pytest.mark.parametrize("quota", [2, None], ids=["quota", "GPUs"])
def test_after_a_victim_that_does_not_end_comes_another_one(quota: int | None) -> None:
    world = world_of(whole("a"), whole("b"), quota=quota)
    world.stubborn = {"a", "b"}
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    stopping = [name for name in "ab" if world.phase(name) is JobPhase.STOPPING]
    assert len(stopping) == 1
    world.stubborn = set(stopping)
    world.tick(OVER_SECONDS)
    assert world.running() == {"high"}


def test_it_is_decided_again_when_the_wait_is_over() -> None:
    world = world_of(whole("stuck"))
    world.stubborn = {"stuck"}
    world.submit(whole("high", priority=5, created=1, workers=2))
    world.tick()
    assert world.why("high").startswith("Preempting: waiting for team/stuck to stop")
    left = world.decide(world.snapshot, world.now).next_seconds
    assert left is not None
    assert left <= GRACE_SECONDS + LATE_SECONDS
