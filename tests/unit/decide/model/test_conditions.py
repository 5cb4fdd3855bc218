"""Conditions change their transition time only when their status changes."""

from gpujob_api.meta import MESSAGE_CHARACTERS_MAX, ConditionStatus
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter, find
from tests.harness.builders import after, make_job


def test_transition_time_stays_while_the_status_stays() -> None:
    """I8: a condition that says the same again is the same."""
    job = make_job()
    first = ConditionWriter(job, after(0)).set(job.status, conditions.RUNNING, False, "A", "one")
    second = ConditionWriter(job, after(5)).set(first, conditions.RUNNING, False, "B", "two")
    found = find(second, conditions.RUNNING)
    assert found is not None
    assert (found.last_transition_time, found.reason, found.message) == (after(0), "B", "two")


def test_transition_time_moves_with_the_status() -> None:
    job = make_job()
    first = ConditionWriter(job, after(0)).set(job.status, conditions.RUNNING, False, "A")
    second = ConditionWriter(job, after(5)).set(first, conditions.RUNNING, True, "A")
    found = find(second, conditions.RUNNING)
    assert found is not None
    assert found.status is ConditionStatus.TRUE
    assert found.last_transition_time == after(5)


def test_unknown_generation_and_bounds() -> None:
    """I8: every condition says which generation it is about; messages are bounded."""
    job = make_job(generation=7)
    status = ConditionWriter(job, after(0)).set(
        job.status, conditions.SUCCEEDED, None, "InProgress", "x" * 5000
    )
    found = find(status, conditions.SUCCEEDED)
    assert found is not None
    assert found.status is ConditionStatus.UNKNOWN
    assert found.observed_generation == 7
    assert len(found.message) == MESSAGE_CHARACTERS_MAX


def test_conditions_are_kept_in_one_order_whatever_the_order_of_setting() -> None:
    """I9: the same findings are the same status."""
    job = make_job()
    writer = ConditionWriter(job, after(0))
    one = writer.set(writer.set(job.status, "A", True, "R"), "B", True, "R")
    other = writer.set(writer.set(job.status, "B", True, "R"), "A", True, "R")
    assert one == other
    assert find(one, "C") is None
