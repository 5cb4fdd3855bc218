"""Whom the jobs of a queue wait for: those before them, and never another queue's borrowers."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.preemption.replaced_queues import REPLACED_SECONDS
from tests.harness.builders import MODEL, make_gpu, make_gpu_node, make_job, make_queue, running
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


@pytest.mark.parametrize(
    "fields",
    [{"suspend": True}, {"namespace": "stranger"}, {"gpus_per_worker": 9}],
    ids=["suspended", "refused by its queue", "never fits"],
)
def test_an_entitled_job_does_not_wait_behind_one_that_cannot_start(fields: dict[str, Any]) -> None:
    """Of two entitled jobs, the one of higher priority starts, whatever stands before it."""
    queues = (
        make_queue("org", gpus=4),
        restricted(make_queue("a", gpus=1, parent="org"), "team"),
        make_queue("b", gpus=1, parent="org"),
    )
    world = world_of(whole("b0", queue="b", gpus_per_worker=1), queues=queues, gpus=1)
    world.tick()
    first = whole("first", queue="a", priority=9, **{"gpus_per_worker": 2, **fields})
    world.submit(first, whole("a1", queue="a", priority=5), whole("b1", queue="b"))
    world.tick()
    world.end("b0")
    world.tick(60)
    assert world.running() == {"a1"}


def restricted(queue: GPUQueue, namespace: str) -> GPUQueue:
    return replace(queue, spec=replace(queue.spec, namespaces=(namespace,)))


# -- held quota

LARGE = "NVIDIA H100"


def two_models(*jobs: GPUJob, queues: tuple[GPUQueue, ...]) -> World:
    """Four GPUs of each model."""
    nodes = [
        make_gpu_node(
            f"n{model}",
            *(make_gpu(f"GPU-{model}{n}", index=n, model=name) for n in range(4)),
        )
        for model, name in enumerate((MODEL, LARGE))
    ]
    return World(*jobs, gpu_nodes=nodes, queues=queues)


def test_no_quota_is_held_for_a_job_whose_gpus_another_queue_has() -> None:
    world = two_models(
        whole("other", queue="b", gpus_per_worker=4, models=(LARGE,)),
        whole("a0", queue="a", models=(MODEL,)),
        queues=(make_queue("a", gpus=4), make_queue("b", gpus=4)),
    )
    world.tick()
    world.submit(whole("gang", queue="a", workers=4, models=(LARGE,)))
    world.tick(90)
    world.submit(*(whole(f"a{n}", queue="a", models=(MODEL,), created=90) for n in (1, 2, 3)))
    world.tick()
    assert world.running() == {"other", "a0", "a1", "a2", "a3"}
    world.end("other")
    world.tick(60)
    world.submit(whole("a4", queue="a", models=(MODEL,), created=150))
    world.end("a0")
    world.tick(60)
    # Now the gang lacks nothing but what jobs of its own queue hold.
    assert "is held for an earlier job" in world.why("a4")


def test_quota_is_held_for_a_gang_whose_gpus_are_lent() -> None:
    """Once its queue's small jobs have ended, it is entitled to what the borrower has."""
    queues = (
        make_queue("org", gpus=8),
        make_queue("a", gpus=4, borrow=0, parent="org"),
        make_queue("b", gpus=0, parent="org"),
    )
    world = two_models(
        *(whole(f"b{n}", queue="b", models=(LARGE,)) for n in range(3)),
        whole("a0", queue="a", models=(LARGE,)),
        queues=queues,
    )
    world.tick()
    world.submit(whole("gang", queue="a", workers=4, models=(LARGE,)))
    world.tick(90)
    world.submit(whole("a1", queue="a", models=(MODEL,), created=90))
    world.tick()
    assert "is held for an earlier job" in world.why("a1")
    world.end("a0")
    world.tick()
    assert "gang" in world.running()


# -- queues that go


def test_what_jobs_of_a_deleted_queue_hold_is_given_back() -> None:
    queues = (make_queue("org", gpus=2), make_queue("a", gpus=2, parent="org"))
    lent = make_queue("b", gpus=0, parent="org")
    world = world_of(whole("b0", queue="b"), whole("b1", queue="b"), queues=(*queues, lent), gpus=2)
    world.tick()
    world.snapshot = replace(world.snapshot, queues=queues)
    world.tick()
    world.submit(whole("a0", queue="a", created=60))
    world.tick(REPLACED_SECONDS - 10)
    assert world.running() == {"b0", "b1"}, "the queue may be made again"
    world.stubborn = {"b0", "b1"}
    world.tick(20)
    stops = [stop for name in ("b0", "b1") if (stop := world.status(name).stop) is not None]
    assert [stop.reason for stop in stops] == ["Reclaimed"]
    assert "queue b does not exist any more" in stops[0].message


def test_a_queue_that_is_made_again_has_its_jobs_again() -> None:
    world = world_of(*(whole(f"b{n}", queue="b") for n in range(2)), gpus=2)
    world.tick()
    org, a, b = world.snapshot.queues
    world.snapshot = replace(world.snapshot, queues=(org, a))
    world.tick()
    again = replace(b, metadata=replace(b.metadata, uid="another"))
    world.snapshot = replace(world.snapshot, queues=(org, a, again))
    world.tick()
    assert world.running() == {"b0", "b1"}
    assert [one.status.reserved_gpus for one in world.snapshot.queues] == [0, 0, 2]


@pytest.mark.parametrize("replaced", ["a", "org"])
def test_a_queue_that_is_replaced_loses_no_attempt(replaced: str) -> None:
    """`kubectl replace --force` deletes a queue and makes it again, with a cycle in between.

    `b` is entitled to a GPU and waits for one.
    """
    org, b = make_queue("org", gpus=3), make_queue("b", parent="org", gpus=1)
    a = make_queue("a", parent="org", gpus=2 if replaced == "a" else None)
    jobs = [whole(f"a{n}", queue="a") for n in range(2)]
    world = world_of(*jobs, queues=(org, a, b), gpus=2)
    world.tick(5)
    world.submit(whole("b0", queue="b", created=5))
    world.tick(120)
    before = world.snapshot.queues
    rest = tuple(one for one in before if one.metadata.name != replaced)
    world.snapshot = replace(world.snapshot, queues=rest)
    world.tick(0.1)
    again = [
        replace(one, metadata=replace(one.metadata, uid="again"))
        for one in before
        if one.metadata.name == replaced
    ]
    world.snapshot = replace(world.snapshot, queues=(*world.snapshot.queues, *again))
    world.tick(5)
    assert world.running() == {"a0", "a1"}
