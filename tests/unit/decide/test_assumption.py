"""A decision is assumed before it is durable unless it frees something."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJobStatus, JobPhase, Reservation, ReservationSource
from gpujob_operator.decide.assumption import may_be_assumed
from tests.harness.builders import GIB, make_job, placed, reserve, running

HELD = running(make_job(), held=reserve(8 * GIB)).status


def _held(reservation: Reservation | None) -> GPUJobStatus:
    return replace(HELD, reservation=reservation)


def test_a_placement_is_assumed() -> None:
    assert may_be_assumed(make_job().status, placed(make_job()).status)


def test_growth_and_a_stop_are_assumed() -> None:
    assert may_be_assumed(HELD, _held(reserve(9 * GIB)))
    assert may_be_assumed(HELD, replace(HELD, phase=JobPhase.STOPPING))
    assert may_be_assumed(_held(None), HELD)


@pytest.mark.parametrize(
    "after",
    [
        replace(HELD, phase=JobPhase.SUCCEEDED),
        replace(HELD, phase=JobPhase.PENDING, placement=None, reservation=None),
        placed(make_job(), ("n1", ("GPU-7",))).status,
        _held(None),
        _held(reserve(7 * GIB)),
        _held(replace(reserve(8 * GIB), utilization_percent=0.0)),
    ],
    ids=["ended", "let go", "moved", "no reservation", "less memory", "less utilization"],
)
def test_what_frees_something_is_not_assumed(after: GPUJobStatus) -> None:
    assert not may_be_assumed(_held(replace(reserve(8 * GIB), utilization_percent=50.0)), after)


@pytest.mark.parametrize(
    "whole",
    [
        replace(reserve(8 * GIB), exclusive=True),
        replace(reserve(8 * GIB), source=ReservationSource.WHOLE_CARD),
    ],
)
def test_a_whole_gpu_that_is_to_be_shared_is_not_assumed(whole: Reservation) -> None:
    shared = replace(reserve(8 * GIB), source=ReservationSource.MEASURED)
    assert not may_be_assumed(_held(whole), _held(shared))
    assert may_be_assumed(_held(shared), _held(whole))


def test_an_ended_job_holds_nothing() -> None:
    ended = replace(HELD, phase=JobPhase.FAILED)
    assert may_be_assumed(ended, make_job().status)
