"""Interruptions without progress: they end, and the waits between them grow."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Checkpoint, Counters, GPUJob, JobPhase, StopReason
from gpujob_api.optimize import Optimize
from gpujob_api.report import CheckpointReport
from gpujob_api.settings import Task
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.lifecycle.retry import FRUITLESS_INTERRUPTIONS_MAX, interrupted
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_report,
    make_template,
    received,
    running,
)
from tests.harness.world import World

CONFIGURATION = Configuration()
INTERRUPTION = Outcome(AttemptEnd.INTERRUPTED)


def test_fruitless_interruptions_end() -> None:
    job = running(make_job(), counters=Counters(fruitless=FRUITLESS_INTERRUPTIONS_MAX))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
    assert not decision.retry
    assert decision.message == "interrupted 51 times in a row without progress (no checkpoint)"


@pytest.mark.promise("I4")
@pytest.mark.parametrize(
    ("status", "fruitless"),
    [
        ({"checkpoint": CheckpointReport(3)}, 0),
        ({"checkpoint": CheckpointReport(3), "interrupted_at_step": 2}, 0),
        ({"checkpoint": CheckpointReport(3), "interrupted_at_step": 3}, 8),
        ({}, 8),
    ],
    ids=["a first checkpoint", "it grew", "the same as before", "none"],
)
def test_progress_alone_lets_interruptions_go_on(status: dict[str, Any], fruitless: int) -> None:
    """I4: a checkpoint that is there is no progress; the durable step has to grow."""
    job = running(make_job(), counters=Counters(fruitless=7), **status)
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
    assert decision.counters.fruitless == fruitless


@pytest.mark.parametrize("reason", ["Preempted", "Reclaimed", "Migrated", "Slowed", "Suspended"])
def test_what_others_or_the_user_interrupt_says_nothing_of_the_job(reason: str) -> None:
    stop = StopReason(reason, "because", after(30))
    job = running(make_job(), stop=stop, counters=Counters(fruitless=7))
    assert interrupted(job, INTERRUPTION, CONFIGURATION, after(60)).counters.fruitless == 7


def test_fruitless_attempts_wait_longer_each_time() -> None:
    """I15: whatever follows the job does not come to every node in an hour."""
    delays: list[float] = []
    for fruitless in (2, 3, 4, 5, FRUITLESS_INTERRUPTIONS_MAX - 1):
        job = running(make_job(), counters=Counters(fruitless=fruitless))
        decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
        assert decision.next_attempt_at is not None
        delays.append((decision.next_attempt_at - after(60)).total_seconds())
    assert delays == [0, 10, 20, 40, CONFIGURATION.retry_backoff_max_seconds]


def test_a_run_that_began_again_makes_progress_from_there() -> None:
    """At step 100,000 its claim was deleted and made again. Since then each attempt saves 1,000
    more steps before its node goes.
    """
    world = World(make_job("a"), gpu_nodes=[make_gpu_node("n0")])

    def report(step: int, saved: int | None, resumed_from: int | None) -> None:
        attempt = world.status("a").attempt
        words = make_report(
            attempt, step=step, checkpoint_step=saved, resumed_from_step=resumed_from
        )
        seen = received(world.job("a"), words, world.seconds)
        world.snapshot = replace(world.snapshot, reports=(seen,))

    world.tick()
    report(100_000, 100_000, None)
    world.tick(30)
    world.end("a", 143)
    for number in range(FRUITLESS_INTERRUPTIONS_MAX + 5):
        while world.phase("a") is JobPhase.PENDING:
            world.tick(30)
        step = 1000 * number
        report(step + 5, step or None, step or None)
        world.tick(60)
        report(step + 1000, step + 1000, step or None)
        world.tick(300)
        world.end("a", 143)
        world.tick(5)
        assert world.status("a").counters.fruitless <= 1
    assert world.phase("a") is not JobPhase.FAILED


DATA = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def with_own_checkpoints() -> GPUJob:
    """A script that keeps its checkpoints on a claim, as trainers do."""
    template = make_template(volumes=DATA)
    mounts = [{"name": "data", "mountPath": "/data"}]
    template["spec"]["containers"][0]["volumeMounts"] = mounts
    job = make_job(template=template, claim=None)
    checkpoint = Checkpoint(path="/data/out/checkpoint-*")
    return replace(job, spec=replace(job.spec, checkpoint=checkpoint))


def server() -> GPUJob:
    return make_job(optimize=Optimize(task=Task.SERVING), claim=None)


@pytest.mark.parametrize("job", [with_own_checkpoints(), server()], ids=["own", "server"])
@pytest.mark.parametrize(("hours", "fruitless"), [(8, 0), (0.1, 8)])
def test_an_attempt_that_lasts_is_progress_where_no_durable_step_is_reported(
    job: GPUJob, hours: float, fruitless: int
) -> None:
    """Its nodes go again and again, for years."""
    job = running(job, at=0.0, counters=Counters(fruitless=7))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(hours * 3600))
    assert decision.counters.fruitless == fruitless
