"""Waiting jobs that are kept in order are in the order in which they would be found anew."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.cache.pending_queues import PendingQueues
from gpujob_operator.decide.model.configuration import Configuration, OrderPolicy
from gpujob_operator.decide.queue.order import OrderEntry, order_keys
from gpujob_operator.decide.queue.pending import Pending, order_keys_of, order_rules
from tests.harness.builders import after, make_job

SHORT_PATIENCE = Configuration(waiting_seconds_max=60.0, waiting_stretch_max=0.0)
SHORTEST = replace(SHORT_PATIENCE, order_policy=OrderPolicy.SHORTEST)
QUEUES = ("default", "a", "b")

numbers = st.integers(0, 12)
# A job comes or changes: its number, queue, priority, arrival, and whether that is known.
comes = st.tuples(
    numbers, st.sampled_from(QUEUES), st.integers(0, 2), st.integers(0, 90), st.booleans()
)
events = st.lists(st.one_of(comes, numbers, st.none()), max_size=40)


def waiting(number: int, queue: str, priority: int, created: int, *, dated: bool) -> Pending:
    job = make_job(f"job-{number}", queue=queue, priority=priority, created=created)
    if not dated:
        job = replace(job, metadata=replace(job.metadata, creation_timestamp=None))
    return Pending(
        job, order_keys=order_keys_of(job, SHORT_PATIENCE, order_rules(SHORT_PATIENCE), None)
    )


def uid_of(number: int) -> str:
    job: GPUJob = make_job(f"job-{number}")
    return job.metadata.uid


@given(events, st.lists(st.integers(-70, 70), min_size=1, max_size=8))
def test_an_order_that_is_kept_is_the_one_found_anew(
    happens: list[tuple[int, str, int, int, bool] | int | None], steps: list[int]
) -> None:
    """Whoever comes, changes or goes, and whichever way the clock moves."""
    kept, seconds = PendingQueues(), 0
    for number, event in enumerate(happens):
        if isinstance(event, tuple):
            number_of, queue, priority, created, dated = event
            kept.put(waiting(number_of, queue, priority, created, dated=dated))
        elif isinstance(event, int):
            kept.drop(uid_of(event))
        else:
            seconds += steps[number % len(steps)]
            fresh = PendingQueues.of(kept.entries.values())
            found = kept.in_order(SHORT_PATIENCE, after(seconds))
            assert found == fresh.in_order(SHORT_PATIENCE, after(seconds))
            assert sum(len(line) for line in found.values()) == len(kept.entries)


def names(lines: PendingQueues, seconds: float, queue: str = "default") -> list[str]:
    line = lines.in_order(SHORT_PATIENCE, after(seconds)).get(queue, ())
    return [entry.job.metadata.name for _, entry in line]


def test_a_job_that_becomes_overdue_moves_to_the_front_of_its_priority() -> None:
    rules = order_rules(SHORTEST)
    lines = PendingQueues()
    for name, created, left_seconds in (("large", 0.0, 900.0), ("small", 10.0, 9.0)):
        job, arrived = make_job(name, created=created), after(created).timestamp()
        known = OrderEntry(job.metadata.uid, arrived, remaining_seconds=left_seconds)
        lines.put(Pending(job, order_keys=order_keys(known, rules)))
    assert names(lines, 20) == ["small", "large"]
    assert names(lines, 59) == ["small", "large"]
    assert names(lines, 60) == ["large", "small"]
    # A clock that is set back takes it back.
    assert names(lines, 59) == ["small", "large"]


def test_a_job_goes_from_its_queue_when_it_is_dropped_or_changes_the_queue() -> None:
    lines = PendingQueues.of([waiting(1, "a", 0, 0, dated=True), waiting(2, "a", 0, 1, dated=True)])
    assert names(lines, 5, "a") == ["job-1", "job-2"]
    lines.put(waiting(1, "b", 0, 0, dated=True))
    assert (names(lines, 6, "a"), names(lines, 6, "b")) == (["job-2"], ["job-1"])
    lines.drop(uid_of(2))
    lines.drop(uid_of(2))
    assert set(lines.in_order(SHORT_PATIENCE, after(7))) == {"b"}
