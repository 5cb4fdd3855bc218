"""A gang that lacks quota shared with other queues is not starved by their stream of small jobs."""

from dataclasses import replace

import pytest

from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import make_gpu, make_gpu_node, make_queue
from tests.harness.world import World
from tests.unit.decide.queue.test_turns_of_queues import whole, world_of

pytestmark = pytest.mark.promise("I11")

STARVED_SECONDS = Configuration().nominate_after_seconds
# A job of the stream ends each time that one comes.
STREAM_SECONDS = 10
SECONDS_MAX = 300


def starts_after(*queues: GPUQueue, workers: int = 3, gpus: int = 8, priority: int = 0) -> float:
    """The seconds until the gang of queue a starts. Queue b has four jobs of a GPU at any time."""
    stream = [
        whole(f"b{n}", queue="b", priority=priority, created=n * STREAM_SECONDS)
        for n in range(4 + SECONDS_MAX // STREAM_SECONDS)
    ]
    world = world_of(*stream[:4], queues=queues, gpus=gpus)
    world.tick()
    began = world.now
    world.submit(whole("gang", queue="a", workers=workers, created=1))
    for job in stream[4:]:
        world.tick(STREAM_SECONDS)
        if "gang" in world.running():
            return (world.now - began).total_seconds()
        # The oldest, by number: b10 runs longer than b9.
        for oldest in sorted(world.running(), key=lambda name: int(name[1:]))[:1]:
            world.end(oldest)
        world.submit(job)
    return float("inf")


ORG, A, B = (
    make_queue("org", gpus=4),
    make_queue("a", parent="org"),
    make_queue("b", parent="org"),
)


@pytest.mark.parametrize(
    "queues",
    [
        pytest.param((ORG, A, B), id="the rest of a parent's quota"),
        pytest.param(
            (ORG, make_queue("a", gpus=4, parent="org"), make_queue("b", gpus=4, parent="org")),
            id="nominal quotas of more than there is",
        ),
        pytest.param(
            (ORG, make_queue("a", gpus=0, parent="org"), make_queue("b", gpus=0, parent="org")),
            id="idle quota that both borrow",
        ),
        pytest.param(
            (
                make_queue("root", gpus=4),
                make_queue("org", parent="root"),
                replace(A, spec=replace(A.spec, parent="org")),
                make_queue("b", parent="root"),
            ),
            id="two levels up",
        ),
    ],
)
def test_a_gang_keeps_its_turn_for_quota_that_is_shared(queues: tuple[GPUQueue, ...]) -> None:
    """One of four GPUs becomes free every ten seconds: three of them take thirty."""
    assert STARVED_SECONDS <= starts_after(*queues) <= STARVED_SECONDS + 4 * STREAM_SECONDS


@pytest.mark.parametrize(
    "queues",
    [
        pytest.param(
            (ORG, make_queue("a", gpus=0, parent="org"), make_queue("b", gpus=4, parent="org")),
            id="all is promised to the other queue",
        ),
        pytest.param(
            (ORG, make_queue("a", gpus=1, parent="org"), B),
            id="the rest is promised to the other queue",
        ),
    ],
)
def test_a_borrower_takes_nobodys_turn_for_what_is_promised(queues: tuple[GPUQueue, ...]) -> None:
    assert starts_after(*queues) == float("inf")


def test_a_higher_priority_has_the_turn_before_a_gang() -> None:
    assert starts_after(ORG, A, B, priority=1) == float("inf")


def test_a_gang_that_would_then_lack_gpus_holds_no_quota() -> None:
    """It fits on a node only that a job of another root has."""
    nodes = [
        make_gpu_node(name, *(make_gpu(f"GPU-{name}{n}", index=n) for n in range(gpus)))
        for name, gpus in (("large", 3), ("small0", 2), ("small1", 2))
    ]
    world = World(
        whole("others", queue="other", gpus_per_worker=3),
        *(whole(f"b{n}", queue="b") for n in range(4)),
        queues=(ORG, A, B, make_queue("other")),
        gpu_nodes=nodes,
    )
    world.tick()
    assert len(world.running()) == 5
    world.submit(whole("gang", queue="a", gpus_per_worker=3))
    world.submit(whole("b4", queue="b", created=1))
    world.tick(STARVED_SECONDS + 5)
    world.end("b0")
    world.tick()
    world.tick()
    assert "b4" in world.running()


def test_what_is_promised_to_a_queue_alone_is_not_held() -> None:
    """Queue c has one GPU of its own, and the gang of a waits for the rest that b holds."""
    queues = (make_queue("org", gpus=5), A, B, make_queue("c", gpus=1, parent="org"))
    world = world_of(*(whole(f"b{n}", queue="b") for n in range(4)), queues=queues, gpus=8)
    world.tick()
    world.submit(whole("gang", queue="a", workers=3))
    world.tick(STARVED_SECONDS + 5)
    world.submit(whole("mine", queue="c", created=2), whole("more", queue="c", created=3))
    world.end("b0")
    world.tick()
    world.tick()
    assert "mine" in world.running()
    assert "held for an earlier job" in world.why("more")


def test_a_borrower_that_lacks_what_is_promised_to_others_holds_nothing() -> None:
    """The jobs of b have what is promised to b alone, so the two idle GPUs are never three."""
    queues = (
        make_queue("org", gpus=6),
        make_queue("a", gpus=0, parent="org"),
        make_queue("b", gpus=4, parent="org"),
        make_queue("c", gpus=0, parent="org"),
    )
    world = world_of(*(whole(f"b{n}", queue="b") for n in range(4)), queues=queues, gpus=8)
    world.tick()
    world.submit(whole("gang", queue="a", workers=3))
    world.tick(STARVED_SECONDS + 5)
    world.submit(whole("c0", queue="c", created=1))
    world.tick()
    assert "c0" in world.running()
