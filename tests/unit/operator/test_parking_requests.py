"""A parked replica is told to wake once all of its memory is reserved, and not before."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpujob_api.gpujob import GPUJob, Reservation, ReservationSource
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.snapshot import Parking, Snapshot
from gpujob_operator.port.parking import ParkingRequests
from tests.harness.builders import T0, make_job, placed, with_status

WHOLE = Reservation(8 * GIB, 10.0, ReservationSource.MEASURED)
AWAKE = with_status(placed(make_job()), reservation=WHOLE)
PARKED = with_status(AWAKE, reservation=Reservation(GIB, 0.0, ReservationSource.PARKED))
UID = AWAKE.metadata.uid
REST = Parking(UID, parks=False, rests=True)
PARK = replace(REST, parks=True)
WAKE = Parking(UID, parks=False)


def asked(*requests: Parking, planned: Iterable[GPUJob] = (AWAKE,)) -> ParkingRequests:
    found = ParkingRequests(lambda: None)
    found.ask(requests, T0)
    found.planned(Snapshot(jobs=tuple(planned)))
    return found


@pytest.mark.parametrize(
    ("requests", "job", "answer", "rests", "current"),
    [
        ((), AWAKE, None, False, ()),
        ((REST,), AWAKE, None, True, ()),
        ((PARK,), AWAKE, True, True, (PARK,)),
        ((PARK,), PARKED, True, True, (PARK,)),
        ((WAKE,), AWAKE, False, False, (Parking(UID, parks=False),)),
        ((WAKE,), PARKED, None, False, (Parking(UID, parks=False),)),
    ],
    ids=["not asked", "rests", "parks", "stays parked", "wakes", "waits for memory"],
)
def test_answers(
    requests: tuple[Parking, ...],
    job: GPUJob,
    answer: bool | None,
    rests: bool,
    current: tuple[Parking, ...],
) -> None:
    found = asked(*requests)
    assert (found.answer(job), found.rests(UID)) == (answer, rests)
    assert found.current() == current


def test_it_waits_for_a_smaller_reservation_that_is_being_written() -> None:
    """What is stored is complete, and will not be once the write in flight has ended."""
    found = asked(WAKE, planned=[PARKED])
    assert found.answer(AWAKE) is None
    found.planned(Snapshot(jobs=(AWAKE,)))
    assert found.answer(AWAKE) is False


def test_a_cycle_from_before_the_request_permits_nothing() -> None:
    found = asked(PARK)
    found.ask([WAKE], T0)
    assert found.answer(AWAKE) is None
    found.planned(Snapshot(jobs=(AWAKE,)))
    assert found.answer(AWAKE) is False


def test_the_time_of_a_request_to_wake_is_that_of_the_first() -> None:
    found = asked(WAKE)
    found.ask([WAKE], T0 + timedelta(seconds=3))
    assert found.waking_since == {UID: T0}
    found.ask([PARK], T0 + timedelta(seconds=4))
    assert found.waking_since == {}
    found.ask([WAKE], T0 + timedelta(seconds=5))
    assert found.waking_since == {UID: T0 + timedelta(seconds=5)}


def test_a_cycle_follows_each_new_request() -> None:
    cycles: list[int] = []
    found = ParkingRequests(lambda: cycles.append(1))
    for requests in ([], [REST], [PARK], [PARK], [WAKE], []):
        found.ask(requests, T0)
    assert len(cycles) == 4
