"""Whom the jobs of a queue wait for: those before them, and never another queue's borrowers."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_queue, running
from tests.harness.queues import queues_of
from tests.harness.world import SETTLE_MAX, World

pytestmark = pytest.mark.promise("I11")

ORG = (
    make_queue("org", gpus=2),
    make_queue("a", gpus=2, parent="org"),
    make_queue("b", gpus=0, parent="org"),
)


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def world_of(*jobs: GPUJob, queues: tuple[GPUQueue, ...] = ORG, gpus: int = 3) -> World:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    return World(*jobs, gpu_nodes=[node], queues=queues)


def stopped(world: World, prefix: str) -> int:
    jobs = [job for job in world.snapshot.jobs if job.metadata.name.startswith(prefix)]
    return sum(job.status.counters.preemptions for job in jobs)


def test_an_entitled_job_does_not_wait_behind_one_that_can_only_borrow() -> None:
    """a1 can never run. While it is a's first, b's stream of higher priority only borrows."""
    world = world_of(whole("a1", queue="a", workers=3), whole("a2", queue="a", created=1))
    for second in range(60):
        world.submit(whole(f"b{second}", queue="b", priority=2, created=second))
        world.tick()
    assert "a2" in world.running()
    assert stopped(world, "b") <= 1
    assert world.status("a2").attempt == 1


def test_what_was_reclaimed_is_held_for_the_job_that_reclaimed_it() -> None:
    """The victim takes its grace; each second another borrower is submitted."""
    world = world_of(*(whole(f"b{n}", queue="b", priority=9) for n in range(2)), gpus=2)
    world.tick()
    assert world.running() == {"b0", "b1"}
    world.stubborn = {"b0", "b1"}
    world.submit(whole("a1", queue="a", workers=3, created=1), whole("a2", queue="a", created=2))
    for second in range(20):
        world.submit(whole(f"b{second + 2}", queue="b", priority=9, created=second))
        world.tick()
    assert world.why("a2").startswith("Preempting")
    leaving = {name for name in ("b0", "b1") if world.phase(name) is JobPhase.STOPPING}
    assert len(leaving) == 1
    world.end(leaving.pop(), 0)
    world.tick()
    assert "a2" in world.running()
    assert stopped(world, "b") <= 1


def test_room_that_a_borrower_made_in_its_queue_is_not_taken_by_an_entitled_one() -> None:
    """The higher priority stops lower ones of its queue, and not one after another."""
    queues = (make_queue("org", gpus=3), make_queue("a", gpus=2, parent="org"), ORG[2])
    world = world_of(whole("low0", queue="a"), whole("low1", queue="a"), queues=queues)
    world.tick()
    world.submit(whole("high", queue="a", workers=3, priority=5, created=1))
    for second in range(20):
        world.submit(whole(f"low{second + 2}", queue="a", created=second + 2))
        world.submit(whole(f"b{second}", queue="b", created=second + 2))
        world.tick()
    assert "high" in world.running()
    assert stopped(world, "low") == 2


def test_an_old_backlog_takes_no_more_than_its_queues_weight() -> None:
    """Overdue since long, and still its turn comes by share."""
    queues = (make_queue("old"), make_queue("new"))
    old = [whole(f"old{n}", queue="old", created=-9 * 86_400) for n in range(40)]
    world = world_of(*old, queues=queues, gpus=4)
    for second in range(10):
        world.submit(whole(f"new{second}", queue="new", created=second))
        world.tick()
        # "old..." comes after "new...".
        world.end(max(world.running()))
    world.tick()
    by_queue = [name[:3] for name in world.running()]
    assert by_queue.count("new") >= 2


def test_nobody_is_placed_whom_the_next_plan_stops() -> None:
    """A tenant has just ended: its GPU is free in the next cycle, and `high` then fits."""
    world = world_of(whole("tenant", priority=1), queues=(), gpus=2)
    world.tick()
    world.submit(whole("high", gpus_per_worker=2, priority=1, created=1))
    world.tick()
    world.submit(whole("low", created=2))
    world.end("tenant")
    world.tick()
    assert world.running() == {"high"}
    assert world.status("low").attempt == 0


def test_no_borrower_is_placed_whose_gpus_the_next_plan_reclaims() -> None:
    queues = (make_queue("a", gpus=2), make_queue("b", gpus=0, borrow=2))
    world = world_of(whole("tenant", queue="a", priority=1), queues=queues, gpus=2)
    world.tick()
    world.submit(whole("pair", queue="a", gpus_per_worker=2, created=1))
    world.tick()
    world.submit(whole("lent", queue="b", created=2))
    world.end("tenant")
    world.tick()
    assert world.running() == {"pair"}
    assert world.status("lent").attempt == 0


def settle(world: World) -> set[str]:
    """Ticks, and returns the jobs that were placed and stopped in it."""
    world.seconds += 1
    placed: set[str] = set()
    taken_back: set[str] = set()
    for _ in range(SETTLE_MAX):
        world.refresh()
        before = {job.metadata.name: job.status for job in world.snapshot.jobs}
        if not world.step().items:
            return taken_back
        for job in world.snapshot.jobs:
            name = job.metadata.name
            if before[name].placement is None and job.status.placement is not None:
                placed.add(name)
            if job.status.phase is JobPhase.STOPPING and name in placed:
                taken_back.add(name)
    raise AssertionError("the world does not settle")


def test_a_higher_priority_that_comes_while_others_leave_is_placed_first() -> None:
    """What `lent` leaves for `low` would be taken from `low` at once."""
    queues = (make_queue("a", gpus=2), make_queue("b", gpus=2, parent="a"))
    world = world_of(whole("lent", queue="a", workers=2), queues=queues)
    world.tick()
    world.stubborn = {"lent"}
    world.submit(whole("other", queue="a", workers=3), whole("low", queue="b", created=1))
    world.tick()
    assert world.phase("lent") is JobPhase.STOPPING
    world.submit(whole("high", queue="b", workers=2, priority=1, created=2))
    world.end("lent", 0)
    assert settle(world) == set()
    assert world.running() == {"high"}
    assert world.status("low").attempt == 0


def test_an_entitled_job_does_not_wait_behind_one_that_never_fits_its_queue() -> None:
    """`wide` outranks `own` and can never start, and in the other queue a borrower outranks an
    entitled job as well: `own` comes before that borrower, which it would stop."""
    queues = (
        make_queue("a", gpus=3, borrow=1),
        make_queue("b", gpus=1, borrow=0, parent="a"),
    )
    running = [whole(f"a{n}", queue="a", priority=2) for n in range(2)]
    world = world_of(*running, whole("b0", queue="b"), queues=queues)
    world.tick()
    world.submit(
        whole("first", queue="a", workers=3, priority=2, created=1),
        whole("lent", queue="a", workers=2, priority=2, created=2),
        whole("small", queue="a", created=3),
        whole("wide", queue="b", workers=2, priority=2, created=1),
        whole("own", queue="b", created=2),
    )
    world.tick()
    world.end("a0")
    world.end("b0")
    assert settle(world) == set()
    assert {"a1", "own"} <= world.running()


def test_who_borrows_reclaims_nothing_because_another_has_ended() -> None:
    """What has ended is subtracted once where its removal is simulated."""
    queues = (make_queue("a", gpus=2), make_queue("b", gpus=2, parent="a"))
    ended = running(whole("ended", queue="a"), ("n0", ("GPU-0",)))
    state = queues_of(queues, [ended])
    state.note_ended([ended])
    assert state.would_borrow(whole("next", queue="a"), 0)
    with state.simulate_removal([ended]):
        assert state.would_borrow(whole("next", queue="a"), 0)
    assert state.would_borrow(whole("next", queue="a"), 0)
