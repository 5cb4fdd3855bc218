import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.model.configuration import OrderPolicy
from gpujob_operator.decide.queue.order import OrderEntry, OrderRules, due_seconds, work_gpu_seconds
from tests.harness.queues import order

SHORTEST = OrderRules(OrderPolicy.SHORTEST)
ARRIVAL = OrderRules()


def test_first_come_first_served() -> None:
    late, early = OrderEntry("a", 5), OrderEntry("b", 1)
    assert order([late, early], 10, ARRIVAL) == ["b", "a"]


def test_equals_go_by_uid_whatever_the_input_order() -> None:
    jobs = [OrderEntry(f"{index:03d}", 0) for index in range(200)]
    for seed in range(100):
        shuffled = random.Random(seed).sample(jobs, len(jobs))
        assert order(shuffled, 10, SHORTEST) == [job.uid for job in jobs]


def test_priority_before_everything() -> None:
    starved = OrderEntry("old", 0, priority=0, remaining_seconds=1)
    urgent = OrderEntry("new", 9_999_999, priority=1, remaining_seconds=1e9)
    assert order([starved, urgent], 1e7, SHORTEST) == ["new", "old"]


def test_shortest_counts_gpus_and_what_starting_costs() -> None:
    wide = OrderEntry("wide", 0, gpus=8, remaining_seconds=100)
    narrow = OrderEntry("narrow", 0, gpus=1, remaining_seconds=700)
    assert order([wide, narrow], 10, SHORTEST) == ["narrow", "wide"]
    runs = OrderEntry("runs", 0, running=True, remaining_seconds=700, restart_seconds=30)
    waits = OrderEntry("waits", 0, remaining_seconds=690, restart_seconds=30)
    assert order([waits, runs], 10, SHORTEST) == ["runs", "waits"]


@pytest.mark.parametrize(
    ("attained_seconds", "guess"),
    [(0, 14400), (28_799, 14_400), (28_800, 28_800), (57_599, 28_800), (57_600, 57_600)],
)
def test_unknown_lengths_are_guessed_in_doublings(attained_seconds: float, guess: float) -> None:
    job = OrderEntry("a", 0, attained_seconds=attained_seconds)
    assert work_gpu_seconds(job) == guess


def test_an_overdue_job_goes_before_shorter_ones() -> None:
    rules = OrderRules(OrderPolicy.SHORTEST, waiting_seconds_max=1000, stretch_max=10)
    long = OrderEntry("long", 0, remaining_seconds=200)
    short = OrderEntry("short", 1990, remaining_seconds=1)
    assert due_seconds(long, rules) == 2000
    assert order([long, short], 1999, rules) == ["short", "long"]
    assert order([long, short], 2000, rules) == ["long", "short"]


def test_never_overdue_where_the_rules_are_infinite() -> None:
    rules = OrderRules(OrderPolicy.SHORTEST, float("inf"), float("inf"))
    long = OrderEntry("long", 0, remaining_seconds=200)
    assert order([long, OrderEntry("short", 1e12, remaining_seconds=1)], 1e12, rules)[0] == "short"


contenders = st.builds(
    OrderEntry,
    uid=st.uuids().map(str),
    arrived_seconds=st.floats(0, 1e6),
    gpus=st.integers(1, 64),
    running=st.booleans(),
    remaining_seconds=st.none() | st.floats(0, 1e6),
    attained_seconds=st.floats(0, 1e6),
)


@given(contenders, contenders, st.floats(0, 1e7), st.floats(0, 1e7))
def test_who_comes_after_a_job_is_overdue_stays_behind_it(
    job: OrderEntry, other: OrderEntry, later: float, further: float
) -> None:
    arrived = due_seconds(job, SHORTEST) + later + 1e-3
    newcomer = OrderEntry(
        "newcomer", arrived, other.gpus, remaining_seconds=other.remaining_seconds
    )
    assert order([newcomer, job], arrived + further, SHORTEST) == [job.uid, "newcomer"]


@given(st.lists(contenders, max_size=20, unique_by=lambda job: job.uid), st.floats(0, 1e7))
def test_nobody_is_lost_and_the_order_is_stable(jobs: list[OrderEntry], now: float) -> None:
    found = order(jobs, now, SHORTEST)
    assert sorted(found) == sorted(job.uid for job in jobs)
    assert found == order(jobs[::-1], now, SHORTEST)
