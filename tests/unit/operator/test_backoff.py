"""An object whose write failed waits for longer each time, and nobody else does."""

from gpujob_operator.act.backoff import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    OBJECTS_MAX,
    Backoff,
)
from tests.harness.clocks import FakeClock


def test_back_off_doubles_up_to_a_minute_and_ends_with_a_success() -> None:
    clock = FakeClock()
    backoff = Backoff(clock.monotonic, uniform=lambda low, high: high)
    target = ("create", "pods", "team", "job-1-0")
    assert backoff.seconds_left(target) == 0
    waits: list[float] = []
    for _ in range(9):
        backoff.failed(target)
        waits.append(backoff.seconds_left(target))
        clock.advance(waits[-1])
        assert backoff.seconds_left(target) == 0
    assert waits[0] == BACKOFF_SECONDS
    assert waits[1:4] == [2.0, 4.0, 8.0]
    assert waits[-1] == BACKOFF_SECONDS_MAX
    backoff.succeeded(target)
    assert (len(backoff), backoff.seconds_left(target)) == (0, 0)


def test_back_off_remembers_a_bounded_number_of_objects() -> None:
    backoff = Backoff(FakeClock().monotonic)
    for number in range(OBJECTS_MAX + 5):
        backoff.failed(("create", "pods", "team", str(number)))
    assert len(backoff) == OBJECTS_MAX
