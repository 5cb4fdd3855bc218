"""A token bucket: so many at once, and so many a second for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.rate_limit import RateLimit


def test_a_burst_is_allowed_and_then_a_few_a_second() -> None:
    limit = RateLimit(100.0, per_second=2.0, burst=3.0)
    assert [limit.take(100.0) for _ in range(5)] == [True, True, True, False, False]
    assert limit.seconds_left(100.0) == pytest.approx(0.5)
    assert [limit.take(100.5), limit.take(100.5)] == [True, False]


def test_a_long_pause_allows_no_more_than_a_burst() -> None:
    limit = RateLimit(0.0, per_second=2.0, burst=3.0)
    assert [limit.take(1e6) for _ in range(4)] == [True, True, True, False]


def test_what_happens_all_the_same_is_waited_for_later() -> None:
    limit = RateLimit(0.0, per_second=2.0, burst=1.0)
    for _ in range(3):
        limit.spend(0.0)
    assert limit.seconds_left(0.0) == pytest.approx(1.5)
    assert not limit.take(1.4)
    assert limit.take(1.5)


@given(
    st.lists(st.floats(0, 10), max_size=200),
    st.floats(0.1, 100),
    st.integers(1, 20),
)
def test_no_more_are_allowed_than_the_burst_and_the_rate(
    pauses: list[float], per_second: float, burst: int
) -> None:
    limit, now, allowed = RateLimit(0.0, per_second=per_second, burst=burst), 0.0, 0
    for pause in pauses:
        now += pause
        allowed += limit.take(now)
    assert allowed <= burst + now * per_second + 1e-6
