"""Order, quota, and what a waiting job keeps free for itself."""

from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import GIB, Memory
from gpujob_operator.decide.admission import Pending, in_order
from gpujob_operator.decide.capacity import Capacity, build_capacity
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.needs import needs_of
from gpujob_operator.decide.queueing import claim, queues_of
from gpujob_operator.decide.snapshot import Snapshot
from tests.harness.builders import (
    T0,
    after,
    make_card,
    make_gpu_node,
    make_job,
    make_node,
    make_queue,
    make_snapshot,
    reserve,
    running,
    with_status,
)

CONFIGURATION = Configuration()


def capacity(snapshot: Snapshot) -> Capacity:
    return build_capacity(snapshot, T0, {})


def claimed(job: GPUJob, *jobs: GPUJob, **snapshot: Any) -> frozenset[str]:
    seen = capacity(make_snapshot(*jobs, **snapshot))
    return claim(needs_of(job, None), seen, CONFIGURATION)


def nodes_of_two(count: int) -> list[Any]:
    return [
        make_gpu_node(f"n{n}", make_card(f"GPU-{n}a"), make_card(f"GPU-{n}b", index=1))
        for n in range(count)
    ]


def test_order_is_priority_then_arrival_then_uid() -> None:
    """I11."""
    jobs = [
        make_job("d", created=2),
        make_job("c", created=1, uid="2"),
        make_job("b", created=1, uid="1"),
        make_job("a", created=9, priority=1),
        make_job("e", created=0, priority=-1),
    ]
    waiting = [Pending(job, None) for job in jobs]
    entries = in_order(waiting, queues_of((), jobs), Capacity(), CONFIGURATION, after(20))
    names = [entry.job.metadata.name for entry in entries]
    assert names == ["a", "b", "c", "d", "e"]


def test_quota_counts_cards_and_memory_of_attempts_that_are_not_finished() -> None:
    held = reserve(8 * GIB)
    jobs = [
        running(make_job("a"), held=held),
        running(make_job("b"), held=held, phase=JobPhase.STOPPING),
        with_status(running(make_job("c"), held=held), phase=JobPhase.SUCCEEDED),
        make_job("d"),
    ]
    queues = queues_of([make_queue("default", gpus=3)], jobs)
    use = queues.use["default"]
    assert (use.jobs, use.gpus, use.memory_bytes) == (2, 2, 16 * GIB)
    assert queues.over(make_job(), GIB) == ""
    assert queues.over(make_job(workers=2), GIB) == "queue default holds 2 of 3 cards, needs 2"
    queues.add(make_job(), jobs[0].status)
    assert queues.over(make_job(), GIB) == "queue default holds 3 of 3 cards, needs 1"


def test_memory_quota() -> None:
    queue = make_queue("q", gpu_memory=Memory(20 * GIB))
    job = make_job(queue="q")
    queues = queues_of([queue], [running(make_job("a", queue="q"), held=reserve(8 * GIB))])
    assert queues.over(job, 12 * GIB) == ""
    assert queues.over(job, 13 * GIB) == "queue q would hold 21 GiB of 20 GiB GPU memory"


def test_queues_that_do_not_exist_are_named() -> None:
    """I10: the field and what there is."""
    queues = queues_of([make_queue("research")], [])
    assert queues.missing(make_job(queue="research")) == ""
    assert queues.missing(make_job()) == ""
    assert queues.over(make_job(), GIB) == ""
    text = queues.missing(make_job(queue="resaerch"))
    assert text == "spec.queue: no GPUQueue 'resaerch'; there are: default, research"


def test_a_claim_is_on_the_cards_that_are_free_soonest() -> None:
    cards = [make_card(f"GPU-{n}", index=n) for n in range(3)]
    busy = [
        running(make_job("a"), ("n0", ("GPU-0",)), held=reserve(8 * GIB)),
        running(make_job("b"), ("n0", ("GPU-0",)), held=reserve(8 * GIB)),
        running(make_job("c"), ("n0", ("GPU-1",)), held=reserve(12 * GIB)),
        running(make_job("d"), ("n0", ("GPU-2",)), held=reserve(4 * GIB)),
    ]
    assert claimed(make_job(), *busy, cards=cards) == {"GPU-2"}
    assert claimed(make_job(gpus_per_worker=2), *busy, cards=cards) == {"GPU-2", "GPU-1"}


def test_a_claim_of_a_worker_with_several_cards_is_on_one_node() -> None:
    """I11: cards on two nodes would be kept free and never be enough."""
    one_busy_on_each = [
        running(make_job(f"j{n}"), (f"n{n}", (f"GPU-{n}b",)), held=reserve(8 * GIB))
        for n in range(2)
    ]
    found = claimed(make_job(gpus_per_worker=2), *one_busy_on_each, gpu_nodes=nodes_of_two(2))
    assert found == {"GPU-0a", "GPU-0b"}


def test_a_claim_is_on_cards_of_one_model() -> None:
    cards = [make_card("GPU-0"), make_card("GPU-1", model="NVIDIA L4", index=1)]
    assert claimed(make_job(workers=2), cards=cards) == frozenset()
    cards.append(make_card("GPU-2", model="NVIDIA L4", index=2))
    assert claimed(make_job(workers=2), cards=cards) == {"GPU-1", "GPU-2"}


def test_what_can_never_fit_claims_nothing() -> None:
    """I11: an impossible job does not block the possible ones."""
    assert claimed(make_job(gpus_per_worker=4), gpu_nodes=nodes_of_two(2)) == frozenset()
    assert claimed(make_job(workers=5), gpu_nodes=nodes_of_two(2)) == frozenset()
    assert claimed(make_job(memory_bytes=40 * GIB)) == frozenset()
    assert claimed(make_job(models=("other",))) == frozenset()
    assert claimed(make_job(), nodes=[make_node(ready=False)]) == frozenset()
    assert claimed(make_job(), cards=[make_card(healthy=False)]) == frozenset()


def test_a_card_full_of_strangers_is_not_claimed() -> None:
    """I11: they go when they like; until then others may use what is left."""
    cards = [make_card(stranger=10 * GIB)]
    assert claimed(make_job(memory_bytes=20 * GIB), cards=cards) == frozenset()
    assert claimed(make_job(memory_bytes=14 * GIB), cards=cards) == {"GPU-0"}


def test_quota_is_kept_for_a_job_that_can_be_within_it() -> None:
    """I11."""
    queues = queues_of([make_queue("default", gpus=4)], [running(make_job("a"))])
    queues.keep(make_job(workers=5), GIB)
    assert queues.over(make_job(), GIB) == ""
    queues.keep(make_job(workers=4), GIB)
    assert "kept for an earlier job" in queues.over(make_job(), GIB)
    assert queues.over(make_job(queue="other"), GIB) == ""
