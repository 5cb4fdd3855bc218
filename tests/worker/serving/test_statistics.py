"""The last minute of a batcher: sums and percentiles in bounded memory."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving.statistics import BOUND_RATIO, WINDOW_SECONDS, SlidingWindow

pytestmark = pytest.mark.any_torch


def test_percentiles_are_at_most_two_percent_too_high() -> None:
    window = SlidingWindow(1.0, now=100.0)
    rng = random.Random(1)
    latencies = sorted(rng.lognormvariate(-4, 1) for _ in range(2000))
    for latency in latencies:
        window.answered(101.0, latency, 1)
    found = window.sums(101.5).latency
    assert found is not None
    for percent, value in (
        (50, found.p50_milliseconds),
        (95, found.p95_milliseconds),
        (99, found.p99_milliseconds),
    ):
        exact = 1000 * latencies[2000 * percent // 100 - 1]
        assert exact <= value * (1 + 1e-9)
        assert value <= exact * BOUND_RATIO * (1 + 1e-9)


@given(latencies=st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_percentiles_ascend_whatever_the_latencies(latencies: list[float]) -> None:
    window = SlidingWindow(1.0, now=0.0)
    for latency in latencies:
        window.answered(1.0, latency, 1)
    found = window.sums(1.5).latency
    assert found is not None
    assert 0 < found.p50_milliseconds <= found.p95_milliseconds <= found.p99_milliseconds


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    window = SlidingWindow(1.0, now=0.0)
    for second in range(1000):
        window.answered(second + 0.5, 0.1, 2)
        window.executed(second + 0.5, 0.25, 2)
    found = window.sums(1000.0)
    assert found.requests == WINDOW_SECONDS - 1
    assert found.samples == 2 * found.requests
    assert found.requests / found.seconds == pytest.approx(1.0, rel=0.02)
    assert found.busy_seconds / found.seconds == pytest.approx(0.25, rel=0.02)
    later = window.sums(1000.0 + WINDOW_SECONDS)
    assert (later.requests, later.batches, later.latency) == (0, 0, None)


def test_rates_soon_after_the_start_are_of_the_time_since_it() -> None:
    window = SlidingWindow(1.0, now=50.0)
    for _ in range(20):
        window.answered(51.9, 0.1, 1)
    found = window.sums(52.0)
    assert found.requests / found.seconds == pytest.approx(10.0)


def test_late_and_failed_requests_are_not_within_the_objective() -> None:
    window = SlidingWindow(0.1, now=0.0)
    window.answered(1.0, 0.05, 1)
    window.answered(1.0, 0.05, 1, "ValueError: no")
    window.answered(1.0, 0.15, 1)
    found = window.sums(1.5)
    assert (found.requests, found.within) == (3, 1)


def test_a_minute_needs_bounded_memory() -> None:
    window = SlidingWindow(1.0, now=0.0)
    rng = random.Random(2)
    for step in range(20_000):
        window.answered(step / 100, rng.uniform(0, 1e-3), 1)
    seconds = list(window._seconds)  # pyright: ignore[reportPrivateUsage]
    assert len(seconds) == WINDOW_SECONDS
    assert max(len(second.latencies) for second in seconds) <= 101


def test_failures_of_the_last_minute_are_counted_with_the_newest_error() -> None:
    window = SlidingWindow(1.0, 0.0)
    window.answered(1.0, 0.1, 1, "ValueError: old")
    for second in (30.0, 31.0):
        window.answered(second, 0.1, 1, f"ValueError: at {second:g}")
        window.answered(second, 0.1, 1)
    sums = window.sums(59.0)
    assert (sums.failed, sums.requests, sums.error) == (3, 5, "ValueError: at 31")
    later = window.sums(65.0)
    assert (later.failed, later.requests) == (2, 4)
    assert window.sums(200.0).error == ""


def test_what_requests_needed_leaves_out_what_was_waited_on_purpose() -> None:
    window = SlidingWindow(1.0, now=0.0, percentile=90.0)
    for number in range(10):
        needed = 0.5 if number == 9 else 0.2
        window.answered(1.0, 0.9, 1, waited_seconds=0.9 - needed)
    found = window.sums(1.5)
    assert found.needed_seconds == pytest.approx(0.2, rel=BOUND_RATIO - 1)
    assert found.latency is not None
    assert found.latency.p50_milliseconds == pytest.approx(900, rel=BOUND_RATIO - 1)
    window.answered(1.0, 0.9, 1, waited_seconds=0.4)
    assert window.sums(1.5).needed_seconds == pytest.approx(0.5, rel=BOUND_RATIO - 1)


def test_a_late_request_needed_all_of_its_time() -> None:
    window = SlidingWindow(1.0, now=0.0)
    window.answered(1.0, 1.1, 1, waited_seconds=0.8)
    assert window.sums(1.5).needed_seconds == pytest.approx(1.1, rel=BOUND_RATIO - 1)


def test_refused_requests_needed_more_than_the_objective() -> None:
    window = SlidingWindow(0.1, now=0.0)
    for _ in range(99):
        window.answered(1.0, 0.01, 1)
    window.refused(1.0)
    assert window.sums(1.5).needed_seconds == pytest.approx(0.01, rel=BOUND_RATIO - 1)
    window.refused(1.0)
    found = window.sums(1.5)
    assert found.needed_seconds == pytest.approx(0.2, rel=BOUND_RATIO - 1)
    assert found.requests == 99


def test_what_requests_needed_is_of_the_last_ten_seconds() -> None:
    window = SlidingWindow(1.0, now=0.0)
    window.answered(1.0, 5.0, 1)
    window.answered(8.0, 0.1, 1)
    assert window.sums(10.9).needed_seconds == pytest.approx(5.0, rel=BOUND_RATIO - 1)
    assert window.sums(11.0).needed_seconds == pytest.approx(0.1, rel=BOUND_RATIO - 1)
    assert window.sums(18.0).needed_seconds is None
    assert window.sums(18.0).latency is not None
