"""Conditions change their transition time only when their status changes."""

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.meta import MESSAGE_CHARACTERS_MAX, ConditionStatus
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter, find
from tests.harness.builders import after, make_job


def with_condition(
    job: GPUJob,
    status: GPUJobStatus,
    seconds: float,
    kind: str,
    value: bool | None,
    reason: str,
    message: str = "",
) -> GPUJobStatus:
    writer = ConditionWriter(job, status, after(seconds))
    writer.set(kind, value, reason, message)
    return writer.status()


@pytest.mark.promise("I8")
def test_transition_time_stays_while_the_status_stays() -> None:
    """I8: a condition that says the same again is the same."""
    job = make_job()
    first = with_condition(job, job.status, 0, conditions.RUNNING, False, "A", "one")
    second = with_condition(job, first, 5, conditions.RUNNING, False, "B", "two")
    found = find(second, conditions.RUNNING)
    assert found is not None
    assert (found.last_transition_time, found.reason, found.message) == (after(0), "B", "two")


def test_transition_time_moves_with_the_status() -> None:
    job = make_job()
    first = with_condition(job, job.status, 0, conditions.RUNNING, False, "A")
    second = with_condition(job, first, 5, conditions.RUNNING, True, "A")
    found = find(second, conditions.RUNNING)
    assert found is not None
    assert found.status is ConditionStatus.TRUE
    assert found.last_transition_time == after(5)


def test_unknown_generation_and_bounds() -> None:
    """I8: every condition says which generation it is about; messages are bounded."""
    job = make_job(generation=7)
    status = with_condition(
        job, job.status, 0, conditions.SUCCEEDED, None, "InProgress", "x" * 5000
    )
    found = find(status, conditions.SUCCEEDED)
    assert found is not None
    assert found.status is ConditionStatus.UNKNOWN
    assert found.observed_generation == 7
    assert len(found.message) == MESSAGE_CHARACTERS_MAX


def test_conditions_are_kept_in_one_order_whatever_the_order_of_setting() -> None:
    """I9: the same findings are the same status."""
    job = make_job()
    one = with_condition(job, with_condition(job, job.status, 0, "A", True, "R"), 0, "B", True, "R")
    other = with_condition(
        job, with_condition(job, job.status, 0, "B", True, "R"), 0, "A", True, "R"
    )
    assert one == other
    assert find(one, "C") is None


def test_a_status_is_copied_once_with_its_conditions_and_other_fields() -> None:
    job = make_job()
    writer = ConditionWriter(job, job.status, after(0))
    writer.set("A", True, "R")
    writer.set("B", False, "R")
    assert find(writer, "A") is not None
    status = writer.status(phase=JobPhase.STARTING)
    assert [condition.type for condition in status.conditions] == ["A", "B"]
    assert status.phase is JobPhase.STARTING
    again = ConditionWriter(job, status, after(9))
    again.set("A", True, "R")
    assert again.status() is status
