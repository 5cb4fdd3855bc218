"""The estimate of batches' times: exact for an exact device, robust against single slow batches,
and quick to follow a lasting change.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving.batch_time import (
    ERRORS_MIN,
    GROUP_BATCHES,
    MARGIN_RANGE,
    MARGIN_UNKNOWN,
    USUAL_MARGIN_RANGE,
    BatchTimes,
    Line,
    fit,
)

pytestmark = pytest.mark.any_torch

TRUE = Line(0.00192, 0.00006)
WRONG = Line(0.005, 0.001)


def observe(times: BatchTimes, sizes: list[int], line: Line, factor: float = 1.0) -> None:
    for size in sizes:
        times.observe(size, factor * line.seconds(size))


def mixed_sizes(count: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice((1, 2, 3, 5, 8, 13, 30)) for _ in range(count)]


@given(
    fixed=st.floats(0, 1),
    per_sample=st.floats(1e-6, 1e-2),
    sizes=st.lists(st.integers(1, 256), min_size=2, max_size=12, unique=True),
)
def test_a_fit_through_points_of_a_line_is_that_line(
    fixed: float, per_sample: float, sizes: list[int]
) -> None:
    line = Line(fixed, per_sample)
    found = fit((size, line.seconds(size), 1.0) for size in sizes)
    for size in sizes:
        assert found.seconds(size) == pytest.approx(line.seconds(size), rel=1e-4)


@given(
    points=st.lists(
        st.tuples(st.integers(1, 256), st.floats(1e-6, 10), st.floats(1e-4, 9)),
        min_size=1,
        max_size=10,
    )
)
def test_a_fit_is_never_negative(points: list[tuple[int, float, float]]) -> None:
    found = fit(points)
    assert found.fixed_seconds >= 0
    assert found.per_sample_seconds >= 0
    # It stays among the points: no size is predicted far below the fastest or above the slowest.
    seconds = [point[1] for point in points]
    middle = sorted(point[0] for point in points)[len(points) // 2]
    assert 0 < found.seconds(middle) <= max(seconds) * 257


def test_times_that_fall_with_the_size_give_no_slope() -> None:
    found = fit([(1, 0.004, 1.0), (8, 0.002, 1.0)])
    assert found.per_sample_seconds == 0
    assert 0.002 < found.fixed_seconds < 0.004


def test_a_negative_fixed_part_becomes_zero() -> None:
    found = fit([(1, 0.001, 1.0), (2, 0.004, 1.0)])
    assert found.fixed_seconds == 0
    assert 0.001 < found.per_sample_seconds < 0.002


@given(seed=st.integers(0, 1000))
def test_a_wrong_prior_is_forgotten(seed: int) -> None:
    times = BatchTimes(WRONG)
    observe(times, mixed_sizes(600, seed), TRUE)
    for size in (1, 8, 30):
        assert times.seconds(size) == pytest.approx(TRUE.seconds(size), rel=0.03)


def test_one_size_alone_takes_the_slope_from_the_prior() -> None:
    times = BatchTimes(TRUE)
    observe(times, [4] * 200, TRUE, factor=2.0)
    assert times.seconds(4) == pytest.approx(2 * TRUE.seconds(4), rel=0.01)
    # All sizes are lifted together, as by a neighbour that takes half of the device.
    assert times.seconds(40) == pytest.approx(2 * TRUE.seconds(40), rel=0.05)


@pytest.mark.parametrize("size", [1, 8, 30])
def test_one_batch_of_ten_seconds_changes_nothing(size: int) -> None:
    times = BatchTimes(TRUE)
    observe(times, mixed_sizes(300), TRUE)
    line, margin = times.line, times.margin
    times.observe(size, 10.0)
    assert times.seconds(size) == pytest.approx(line.seconds(size), rel=0.01)
    assert times.margin == margin
    observe(times, mixed_sizes(50), TRUE)
    assert times.seconds(size) == pytest.approx(TRUE.seconds(size), rel=0.01)


def test_a_slow_first_batch_is_forgotten_after_a_few() -> None:
    times = BatchTimes(TRUE)
    times.observe(1, 10.0)
    observe(times, [1, 1, 1], TRUE)
    assert times.seconds(1) == pytest.approx(TRUE.seconds(1), rel=0.01)
    assert times.margin == MARGIN_UNKNOWN


def test_a_neighbour_that_doubles_the_times_is_followed_within_a_group() -> None:
    times = BatchTimes(TRUE)
    observe(times, [8] * 200, TRUE)
    observe(times, [8] * (GROUP_BATCHES // 2), TRUE, factor=2.0)
    assert times.seconds(8) < 1.1 * TRUE.seconds(8)
    observe(times, [8], TRUE, factor=2.0)
    assert times.seconds(8) == pytest.approx(2 * TRUE.seconds(8), rel=0.05)
    # And back.
    observe(times, [8] * GROUP_BATCHES, TRUE)
    assert times.seconds(8) == pytest.approx(TRUE.seconds(8), rel=0.05)


def test_a_size_not_seen_for_long_does_not_hold_the_line_back() -> None:
    times = BatchTimes(TRUE)
    observe(times, [1, 100] * GROUP_BATCHES, TRUE)
    observe(times, [1, 4] * 300, TRUE, factor=3.0)
    assert times.seconds(4) == pytest.approx(3 * TRUE.seconds(4), rel=0.05)


def test_the_margin_is_that_of_the_late_batches() -> None:
    rng = random.Random(7)
    times = BatchTimes(TRUE, percentile=99.0)
    for _ in range(2000):
        size = rng.choice((1, 4, 16))
        times.observe(size, TRUE.seconds(size) * rng.uniform(1.0, 1.4))
    late = 0
    for _ in range(2000):
        size = rng.choice((1, 4, 16))
        seconds = TRUE.seconds(size) * rng.uniform(1.0, 1.4)
        late += seconds > times.seconds(size) * (1 + times.margin)
        times.observe(size, seconds)
    assert late <= 0.02 * 2000
    assert 0.1 < times.margin < 0.4


def test_the_margin_has_bounds() -> None:
    exact, wild = BatchTimes(TRUE), BatchTimes(TRUE)
    observe(exact, [4] * 100, TRUE)
    assert exact.margin == MARGIN_RANGE[0]
    rng = random.Random(3)
    for _ in range(300):
        wild.observe(4, TRUE.seconds(4) * rng.choice((1, 50)))
    assert wild.margin == MARGIN_RANGE[1]
    assert wild.usual_margin == USUAL_MARGIN_RANGE[1]


def test_rare_slow_batches_are_in_the_margin_of_the_percentile_alone() -> None:
    strict, lenient = BatchTimes(TRUE, percentile=99.0), BatchTimes(TRUE, percentile=90.0)
    for number in range(500):
        seconds = TRUE.seconds(4) * (1.6 if number % 20 == 0 else 1.0)
        strict.observe(4, seconds)
        lenient.observe(4, seconds)
    assert strict.margin == pytest.approx(0.6, rel=0.05)
    assert lenient.margin == MARGIN_RANGE[0]
    assert strict.usual_margin == USUAL_MARGIN_RANGE[0]


def test_few_errors_give_the_margin_of_the_unknown() -> None:
    times = BatchTimes(TRUE)
    observe(times, [4] * ERRORS_MIN, TRUE)
    assert times.margin == MARGIN_UNKNOWN
    observe(times, [4], TRUE)
    assert times.margin < MARGIN_UNKNOWN
    assert times.observed == ERRORS_MIN + 1


@given(
    batches=st.lists(st.tuples(st.integers(1, 65_536), st.floats(0, 1e5)), min_size=1, max_size=100)
)
def test_whatever_is_observed_predictions_stay_positive_and_finite(
    batches: list[tuple[int, float]],
) -> None:
    times = BatchTimes(WRONG)
    for samples, seconds in batches:
        times.observe(samples, seconds)
        assert 0 < times.seconds(1) <= times.seconds(65_536) < 1e12
