"""The operator's time is the API server's, and no step of a wall clock moves it while it leads."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.leadership.cluster_clock import TOLERANCE_SECONDS, ClusterClock
from gpujob_operator.observe.cache import Cache
from gpujob_operator.options import parse_arguments, run_options
from gpujob_operator.run import Operator
from tests.harness.builders import T0

pytestmark = pytest.mark.promise("I9")

HOUR = timedelta(hours=1)


class Machine:
    """A wall clock that may be set, and one that cannot."""

    def __init__(self, wrong: timedelta = timedelta(0)) -> None:
        self.wrong = wrong
        self.seconds = 0.0
        self.moved: list[timedelta] = []
        self.clock = ClusterClock(self.wall, lambda: self.seconds, self.moved.append)

    def truth(self) -> datetime:
        return T0 + timedelta(seconds=self.seconds)

    def wall(self) -> datetime:
        return self.truth() + self.wrong

    def hear(self) -> None:
        self.clock.heard(format_datetime(self.truth(), usegmt=True))

    @property
    def error_seconds(self) -> float:
        return abs((self.clock.now() - self.truth()).total_seconds())


@pytest.mark.parametrize("wrong", [-HOUR, HOUR, timedelta(seconds=TOLERANCE_SECONDS + 1)])
def test_a_wrong_wall_clock_does_not_matter(wrong: timedelta) -> None:
    machine = Machine(wrong)
    assert machine.error_seconds == abs(wrong.total_seconds())
    machine.hear()
    assert machine.error_seconds <= 1
    machine.seconds += 100
    assert machine.error_seconds <= 1


def test_a_good_wall_clock_is_finer_than_the_header() -> None:
    machine = Machine(timedelta(milliseconds=700))
    machine.seconds = 0.4
    machine.hear()
    assert machine.clock.now() == machine.wall()


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_jump_while_it_leads_moves_nothing(jump: timedelta) -> None:
    machine = Machine()
    machine.hear()
    machine.clock.hold(True)
    machine.wrong = jump
    machine.seconds += 10
    machine.hear()
    assert machine.error_seconds <= 1


def test_while_it_leads_not_even_the_api_server_moves_it() -> None:
    machine = Machine()
    machine.clock.hold(True)
    machine.clock.heard(format_datetime(T0 + HOUR, usegmt=True))
    assert machine.error_seconds == 0
    machine.clock.hold(False)
    machine.clock.heard(format_datetime(T0 + HOUR, usegmt=True))
    assert machine.clock.now() == T0 + HOUR


@pytest.mark.parametrize("text", [None, "", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT", "\x00"])
def test_a_header_that_cannot_be_read_changes_nothing(text: str | None) -> None:
    machine = Machine()
    machine.clock.heard(text)
    assert machine.clock.now() == T0


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
def test_by_how_much_it_was_set_is_told_once(wrong: timedelta) -> None:
    machine = Machine(wrong)
    machine.hear()
    assert [round(by.total_seconds()) for by in machine.moved] == [-wrong.total_seconds()]
    machine.seconds += 5
    machine.hear()
    assert len(machine.moved) == 1, "it was right"


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_an_operator_measures_anew_what_it_measured_by_a_wrong_clock(
    wrong: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `run.py` builds it."""
    moved = list[timedelta]()

    def clock_moved(cache: Cache, by: timedelta) -> None:
        del cache
        moved.append(by)

    monkeypatch.setattr(Cache, "clock_moved", clock_moved)
    operator = Operator(run_options(parse_arguments(["run"]), "me"), plan, plan_services)
    operator._clock.heard(format_datetime(datetime.now(UTC) - wrong))
    (by,) = moved
    assert abs(by + wrong) < timedelta(minutes=1)
