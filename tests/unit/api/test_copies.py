"""Copies with some fields changed."""

from dataclasses import dataclass, fields, replace

import pytest

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJobStatus, JobPhase
from tests.harness.builders import T0, make_job, running


def test_it_is_what_replace_gives() -> None:
    status = running(make_job()).status
    assert changed(status, phase=JobPhase.STOPPING, observed_at=T0) == replace(
        status, phase=JobPhase.STOPPING, observed_at=T0
    )


def test_every_field_is_where_it_was() -> None:
    """Values that tell the fields apart: none may come to another's place."""
    marks = {field.name: f"value of {field.name}" for field in fields(GPUJobStatus)}
    status = changed(GPUJobStatus(), **marks)
    assert {name: getattr(status, name) for name in marks} == marks
    after = changed(status, summary="other")
    assert {name: getattr(after, name) for name in marks} == {**marks, "summary": "other"}


def test_the_original_stays() -> None:
    status = GPUJobStatus()
    changed(status, attempt=3)
    assert status == GPUJobStatus()


def test_a_field_that_there_is_not() -> None:
    with pytest.raises(KeyError, match="phaze"):
        changed(GPUJobStatus(), phaze=JobPhase.RUNNING)


@dataclass(frozen=True, slots=True)
class Checked:
    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"{self.lowest} is more than {self.highest}")


def test_a_noun_that_checks_itself_is_checked() -> None:
    assert changed(Checked(1, 2), highest=3) == Checked(1, 3)
    with pytest.raises(ValueError, match="4 is more than 2"):
        changed(Checked(1, 2), lowest=4)


@dataclass(frozen=True)
class WithoutSlots:
    first: int
    second: int


def test_a_noun_without_slots() -> None:
    assert changed(WithoutSlots(1, 2), second=3) == WithoutSlots(1, 3)
