"""Order, quota of queues and their parents, borrowing."""

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.quantities import GIB, Memory
from gpujob_operator.decide.cache.pending_queues import PendingQueues
from gpujob_operator.decide.capacity.cluster import ClusterSize
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.queue.heads import QueueHeads
from gpujob_operator.decide.queue.pending import Pending
from gpujob_operator.decide.queue.quota import QuotaState
from tests.harness.builders import (
    after,
    make_job,
    make_queue,
    reserve,
    running,
    with_status,
)
from tests.harness.queues import queues_of

FLEET = ClusterSize(gpus=10, memory_bytes=240 * GIB)
CONFIGURATION = Configuration()


def line_of(jobs: list[GPUJob], queues: QuotaState, arrays: ClusterSize = FLEET) -> QueueHeads:
    waiting = PendingQueues.of(Pending(job) for job in jobs)
    return QueueHeads(waiting.in_order(CONFIGURATION, after(20)), queues, arrays, lambda _: GIB)


def names_in_line(jobs: list[GPUJob], *queues: GPUQueue, arrays: ClusterSize = FLEET) -> list[str]:
    line = line_of(
        [job for job in jobs if job.status.placement is None], queues_of(queues, jobs), arrays
    )
    return [entry.job.metadata.name for entry in line]


@pytest.mark.promise("I11")
def test_order_is_priority_then_arrival_then_uid() -> None:
    """I11."""
    jobs = [
        make_job("d", created=2),
        make_job("c", created=1, uid="2"),
        make_job("b", created=1, uid="1"),
        make_job("a", created=9, priority=1),
        make_job("e", created=0, priority=-1),
    ]
    assert names_in_line(jobs) == ["a", "b", "c", "d", "e"]


def test_quota_counts_gpus_and_memory_of_attempts_that_are_not_finished() -> None:
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
    assert queues.quota_shortfall(make_job(), GIB) == ""
    assert (
        queues.quota_shortfall(make_job(workers=2), GIB)
        == "queue default uses 2 of 3 GPUs, needs 2 more"
    )
    queues.add(make_job(), jobs[0].status)
    assert queues.quota_shortfall(make_job(), GIB) == "queue default uses 3 of 3 GPUs, needs 1 more"


def test_memory_quota() -> None:
    queue = make_queue("q", gpu_memory=Memory(20 * GIB))
    job = make_job(queue="q")
    queues = queues_of([queue], [running(make_job("a", queue="q"), held=reserve(8 * GIB))])
    assert queues.quota_shortfall(job, 12 * GIB) == ""
    assert queues.quota_shortfall(job, 13 * GIB) == "queue q would use 21 GiB of 20 GiB GPU memory"


def test_a_job_that_the_whole_quota_cannot_hold_never_starts_and_the_message_names_the_field() -> (
    None
):
    gpus = queues_of([make_queue("q", gpus=3)], [running(make_job("a", queue="q"))])
    wide = gpus.quota_shortfall(make_job(queue="q", workers=4), GIB)
    assert wide.startswith("queue q may use 3 GPUs, the job needs 4: it never starts")
    assert "nominal or borrowingLimit" in wide
    memory = queues_of([make_queue("q", gpu_memory=Memory(20 * GIB))], [])
    large = memory.quota_shortfall(make_job(queue="q"), 21 * GIB)
    assert large.startswith("queue q may use 20 GiB of GPU memory, the job needs 21 GiB: it never")


def test_queues_that_do_not_exist_are_named() -> None:
    """I10: the field and what there is."""
    queues = queues_of([make_queue("research")], [])
    assert queues.unknown_queue(make_job(queue="research")) == ""
    assert queues.unknown_queue(make_job()) == ""
    assert queues.quota_shortfall(make_job(), GIB) == ""
    text = queues.unknown_queue(make_job(queue="resaerch"))
    assert (
        text == "spec.queue: GPUQueue 'resaerch' does not exist; existing queues: default, research"
    )


def test_quota_is_kept_for_a_job_that_can_be_within_it() -> None:
    """I11."""
    queues = queues_of([make_queue("default", gpus=4)], [running(make_job("a"))])
    assert queues.is_kept_out_by_others(make_job(workers=5), GIB)
    assert not queues.is_kept_out_by_others(make_job(workers=4), GIB)
    queues.hold_quota(make_job(workers=4))
    assert "held for an earlier job" in queues.quota_shortfall(make_job(), GIB)
    assert queues.quota_shortfall(make_job(queue="other"), GIB) == ""


# -- the line


def test_who_made_room_waits_behind_those_that_were_there() -> None:
    first = with_status(make_job("first", created=0), requeued_at=after(15))
    assert names_in_line([first, make_job("second", created=10)]) == ["second", "first"]


def test_queues_take_turns_by_their_share() -> None:
    held = reserve(24 * GIB)
    jobs = [
        running(make_job("r", queue="rich"), held=held),
        *(make_job(f"r{n}", queue="rich", created=n) for n in range(2)),
        *(make_job(f"p{n}", queue="poor", created=10 + n) for n in range(2)),
    ]
    assert names_in_line(jobs, make_queue("rich"), make_queue("poor")) == ["p0", "p1", "r0", "r1"]
    heavy = make_queue("rich", weight=1000)
    jobs.append(running(make_job("p", queue="poor"), held=held))
    assert names_in_line(jobs, heavy, make_queue("poor")) == ["r0", "r1", "p0", "p1"]


def test_shares_grow_while_jobs_are_placed() -> None:
    jobs = [
        *(make_job(f"a{n}", queue="a", created=n) for n in range(3)),
        *(make_job(f"b{n}", queue="b", created=10 + n) for n in range(3)),
    ]
    queues = queues_of([make_queue("a"), make_queue("b")], jobs)
    line = line_of(jobs, queues)
    names: list[str] = []
    for entry in line:
        names.append(entry.job.metadata.name)
        queues.add(entry.job, running(entry.job, held=reserve(GIB)).status)
    assert names == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_children_of_one_parent_count_together() -> None:
    held = reserve(24 * GIB)
    queues = [
        make_queue("team"),
        make_queue("x", parent="team"),
        make_queue("y", parent="team"),
        make_queue("alone"),
    ]
    jobs = [
        running(make_job("run-x", queue="x"), held=held),
        running(make_job("run-alone", queue="alone"), held=held),
        running(make_job("run-x2", queue="x"), held=held),
        make_job("of-y", queue="y", created=0),
        make_job("of-x", queue="x", created=1),
        make_job("of-alone", queue="alone", created=9),
    ]
    assert names_in_line(jobs, *queues) == ["of-alone", "of-y", "of-x"]


@pytest.mark.promise("I11")
def test_a_job_of_the_parent_itself_counts_beside_those_of_its_children() -> None:
    """I11: the parent's quota bounds it and its children together."""
    parent, child = make_queue("lab", gpus=3), make_queue("north", gpus=3, parent="lab")
    workers = ("n0", ("GPU-1",)), ("n0", ("GPU-2",))
    jobs = [running(make_job("a", queue="north", workers=2), *workers, held=reserve(GIB))]
    queues = queues_of([parent, child], jobs)
    assert queues.quota_shortfall(make_job(queue="lab"), GIB) == ""
    too_many = make_job(queue="lab", workers=2)
    assert queues.quota_shortfall(too_many, GIB) == "queue lab uses 2 of 3 GPUs, needs 2 more"


@pytest.mark.promise("I11")
def test_jobs_within_their_quota_come_before_borrowers_of_any_priority() -> None:
    queues = [make_queue("a", gpus=0, borrow=5), make_queue("b", gpus=1)]
    jobs = [
        make_job("borrower", queue="a", priority=9, created=0),
        make_job("entitled", queue="b", created=5),
    ]
    assert names_in_line(jobs, *queues) == ["entitled", "borrower"]


def test_the_longest_overdue_comes_first_in_its_queue_and_not_before_other_queues() -> None:
    held = reserve(24 * GIB)
    jobs = [
        running(make_job("r", queue="rich"), held=held),
        make_job("overdue", queue="rich", created=-2 * 86_400),
        make_job("longer", queue="rich", created=-3 * 86_400),
        make_job("poor", queue="poor", created=-100),
    ]
    line = names_in_line(jobs, make_queue("rich"), make_queue("poor"))
    assert line == ["poor", "longer", "overdue"]


# -- borrowing


def test_borrowing_has_a_limit() -> None:
    jobs = [running(make_job(f"j{n}"), held=reserve(GIB)) for n in range(3)]
    queues = queues_of([make_queue("default", gpus=2, borrow=2)], jobs)
    assert queues.quota_shortfall(make_job(), GIB) == ""
    assert (
        queues.quota_shortfall(make_job(workers=2), GIB)
        == "queue default uses 3 of 4 GPUs, needs 2 more"
    )
    assert queues.would_borrow(make_job(), GIB)
    assert not queues.fits_in_nominal(make_job(), GIB)
    assert queues.can_be_reclaimed_for("default", "other")
    assert not queues.can_be_reclaimed_for("default", "default")


def test_without_a_nominal_quota_nobody_is_entitled_and_nobody_borrows() -> None:
    queues = queues_of([make_queue("default")], [running(make_job("a"))])
    assert not queues.fits_in_nominal(make_job(), GIB)
    assert not queues.would_borrow(make_job(), GIB)
    assert not queues.can_be_reclaimed_for("default", "other")


def test_a_child_within_its_own_is_entitled_while_its_sibling_has_all() -> None:
    queues = queues_of(
        [
            make_queue("team", gpus=2),
            make_queue("x", gpus=1, parent="team"),
            make_queue("y", gpus=1, parent="team"),
            make_queue("far", gpus=1),
        ],
        [running(make_job(f"x{n}", queue="x"), held=reserve(GIB)) for n in range(2)],
    )
    child = make_job("y0", queue="y")
    assert queues.quota_shortfall(child, GIB) == "queue team uses 2 of 2 GPUs, needs 1 more"
    assert queues.fits_in_nominal(child, GIB)
    assert queues.can_be_reclaimed_for("x", "y")
    # The team as a whole is within its quota: that is no business of others.
    assert not queues.can_be_reclaimed_for("x", "far")
    assert not queues.fits_in_nominal(make_job("y1", queue="y", workers=2), GIB)


def test_a_parent_that_does_not_exist_is_none() -> None:
    queues = queues_of([make_queue("x", gpus=1, parent="gone")], [])
    assert queues.root("x") == "x"
    assert queues.quota_shortfall(make_job(queue="x", workers=2), GIB)


def test_as_if_some_were_gone_and_back_again() -> None:
    jobs = [running(make_job(f"j{n}"), held=reserve(GIB)) for n in range(2)]
    queues = queues_of([make_queue("default", gpus=2)], jobs)
    with queues.simulate_removal(jobs[:1]):
        assert queues.quota_shortfall(make_job(), GIB) == ""
    assert queues.quota_shortfall(make_job(), GIB)
