"""A decision counts before it is durable, except for what it frees."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJobStatus, JobPhase, Reservation, ReservationSource
from gpujob_operator.decide.model.assumption import assumed_status
from tests.harness.builders import GIB, make_job, placed, reserve, running

HELD = running(make_job(), held=reserve(8 * GIB, utilization_percent=50.0)).status


def _held(reservation: Reservation | None) -> GPUJobStatus:
    return replace(HELD, reservation=reservation)


def test_a_placement_is_assumed() -> None:
    after = placed(make_job()).status
    assert assumed_status(make_job().status, after) is after


def test_an_ended_job_held_nothing() -> None:
    after = make_job().status
    assert assumed_status(replace(HELD, phase=JobPhase.FAILED), after) is after


@pytest.mark.parametrize(
    "after",
    [
        _held(reserve(9 * GIB, utilization_percent=50.0)),
        replace(HELD, phase=JobPhase.STOPPING),
        _held(reserve(8 * GIB, ReservationSource.WHOLE_GPU, 50.0, exclusive=True)),
    ],
    ids=["growth", "a stop", "the whole GPU"],
)
def test_what_holds_as_much_is_assumed_as_it_is(after: GPUJobStatus) -> None:
    assert assumed_status(HELD, after) is after


def test_the_names_of_its_pods_are_no_other_place() -> None:
    placement = HELD.placement
    assert placement is not None
    workers = tuple(replace(worker, pod_uid="uid-pod") for worker in placement.workers)
    after = replace(HELD, placement=replace(placement, workers=workers))
    assert assumed_status(HELD, after) is after


@pytest.mark.parametrize(
    "after",
    [
        replace(HELD, phase=JobPhase.SUCCEEDED),
        replace(HELD, phase=JobPhase.PENDING, placement=None, reservation=None),
        placed(make_job(), ("n1", ("GPU-7",))).status,
    ],
    ids=["ended", "let go", "moved"],
)
def test_gpus_that_would_be_let_go_are_held_until_that_is_durable(after: GPUJobStatus) -> None:
    assert assumed_status(HELD, after) is None


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        (reserve(8 * GIB), reserve(7 * GIB), reserve(8 * GIB)),
        (reserve(8 * GIB), None, reserve(8 * GIB)),
        (None, reserve(8 * GIB), reserve(8 * GIB)),
        (
            reserve(8 * GIB, utilization_percent=10.0),
            reserve(7 * GIB, utilization_percent=40.0),
            reserve(8 * GIB, utilization_percent=40.0),
        ),
        (
            reserve(8 * GIB, ReservationSource.WHOLE_GPU),
            reserve(3 * GIB),
            reserve(8 * GIB, ReservationSource.WHOLE_GPU),
        ),
        (
            reserve(8 * GIB, exclusive=True),
            reserve(8 * GIB),
            reserve(8 * GIB, exclusive=True),
        ),
    ],
)
def test_of_two_reservations_the_larger_of_each_counts(
    before: Reservation | None, after: Reservation | None, held: Reservation
) -> None:
    found = assumed_status(_held(before), _held(after))
    assert found is not None
    assert found.reservation == held


def test_what_does_not_shrink_comes_through_with_what_does() -> None:
    after = replace(_held(reserve(7 * GIB)), attempt=9)
    found = assumed_status(HELD, after)
    assert found is not None
    assert (found.attempt, found.reservation) == (9, HELD.reservation)
