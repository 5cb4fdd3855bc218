"""What the simulation's recorder says of the memory of one GPU of 24 GiB (I1)."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import after, make_job, placed, reserve, with_status
from tests.simulation.api_server import Revision
from tests.simulation.room import CLOCK_SLACK_SECONDS, READING_WINDOW_SECONDS, Room

PLACE: Place = ("n0", "GPU-0")
FIRST = placed(make_job("a"), held=reserve(8 * GIB))
# When the plan was made that grows the first job.
PLAN = 100.0
WORKERS = {"uid-a-1-0": ("uid-a", 1)}
# What was seen for so long is known to every plan.
KNOWN_SECONDS = READING_WINDOW_SECONDS + CLOCK_SLACK_SECONDS


def revision(at: float, by: str = "one") -> Revision:
    return Revision(1, at, Kind.JOB, "MODIFIED", {}, None, by, at)


class Scene:
    """The first job is there. Tell what happens next in its order."""

    def __init__(self) -> None:
        self._room = Room()
        self.jobs = {"a": FIRST}
        self.found: list[str] = []

    def reads(self, at: float, gib: float) -> None:
        """What the first job uses."""
        used = int(gib * GIB)
        process = {"podUid": "uid-a-1-0", "memoryBytes": used}
        gpu = {
            "uuid": "GPU-0",
            "memoryTotalBytes": 24 * GIB,
            "memoryReservedBytes": 0,
            "memoryUsedBytes": used,
            "processes": [process],
        }
        self._room.read(at, "n0", [gpu], WORKERS)

    def grows(self, at: float = PLAN, by: str = "one", decided_at: float = PLAN) -> None:
        job = with_status(FIRST, reservation=reserve(9 * GIB), observed_at=after(decided_at))
        self._write(revision(at, by), FIRST, job)

    def places(
        self, at: float = PLAN, by: str = "one", decided_at: float = PLAN, gib: float = 15.5
    ) -> None:
        waiting = make_job("b")
        held = reserve(int(gib * GIB))
        self._write(revision(at, by), waiting, placed(waiting, held=held, at=decided_at))

    def _write(self, write: Revision, before: GPUJob, job: GPUJob) -> None:
        self.jobs[job.metadata.name] = job
        tenants = list(self.jobs.values())
        self.found += self._room.check(write, before, job, PLACE, tenants)


def scene(*readings: tuple[float, float]) -> Scene:
    made = Scene()
    for at, gib in readings:
        made.reads(at, gib)
    return made


def test_whichever_of_the_two_writes_of_a_plan_comes_first() -> None:
    one, other = scene((60, 8), (99, 9)), scene((60, 8), (99, 9))
    one.grows()
    one.places()
    assert [text.startswith("26306674688 of 25769803776 bytes") for text in one.found] == [True]
    other.places()
    assert not other.found, "the plan may rest on the first reading"
    other.grows()
    (text,) = other.found
    assert text == "b was placed with 536870912 bytes too much: its plan knew that a grows"


def test_what_leaves_room_for_growth_is_right_in_any_order() -> None:
    made = scene((60, 8), (99, 9))
    made.places(gib=15)
    made.grows()
    assert not made.found


def test_a_placement_from_before_the_growth_was_decided_is_excused() -> None:
    made = scene((60, 8))
    made.places(at=98, decided_at=98)
    made.reads(99, 9)
    made.grows()
    assert not made.found


def test_a_placement_by_another_process_is_excused() -> None:
    made = scene((60, 8), (99, 9))
    made.places(by="two")
    made.grows()
    assert not made.found


def test_whom_another_process_placed_since_is_not_counted() -> None:
    """It did not wait for the write of the one before it, which arrives late."""
    made = scene((60, 8), (99, 9))
    late = placed(make_job("c"), held=reserve(3 * GIB), at=PLAN + 10)
    made.jobs["c"] = late
    made.places(at=PLAN + 12, gib=12.5)
    made.grows(at=PLAN + 13)
    assert not made.found


def test_use_that_every_plan_knew_of_is_not_free() -> None:
    """However late the growth is decided, and by whom."""
    made = scene((PLAN - KNOWN_SECONDS - 1, 8), (PLAN - KNOWN_SECONDS, 9), (PLAN - 20, 9))
    made.places()
    assert made.found == ["b was placed on 536870912 bytes that others use"]


@pytest.mark.parametrize("at", [PLAN - KNOWN_SECONDS, PLAN, PLAN + 60])
def test_one_reading_without_it_excuses_a_placement(at: float) -> None:
    """Before the plan it may be the one that the plan knew. One after it says nothing of the plan,
    and is believed all the same: the write may be of a later moment than it says."""
    made = scene((PLAN - KNOWN_SECONDS, 9), (PLAN - 20, 9), (at, 8))
    made.places(at=PLAN + 60)
    assert not made.found


def test_use_that_came_while_the_write_was_under_way_is_excused() -> None:
    made = scene((PLAN - 1, 8), *((PLAN + seconds, 9.0) for seconds in range(1, 80, 8)))
    made.places(at=PLAN + 80)
    assert not made.found


def test_another_attempts_use_is_not_counted() -> None:
    made = scene((PLAN - 30, 9), (PLAN - 10, 9))
    made.jobs["a"] = replace(FIRST, status=replace(FIRST.status, attempt=2))
    made.places()
    assert not made.found
