"""Ratios of paired times: the median, its interval, and what disturbs them."""

import random

import pytest

from bench.turns.ratios import geometric_mean, paired_ratio, quiet_ratio, ratio_of_medians


def test_median_of_the_pairs_ratios() -> None:
    found = paired_ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    assert (found.median, found.low, found.high, found.pairs) == (2.0, 2.0, 3.0, 3)


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 0), (10, 1), (20, 5), (100, 39)])
def test_interval_is_that_of_the_sign_test(count: int, rank: int) -> None:
    """Ranks from tables of the sign test at 95 %: the rank-th smallest, counted from 0."""
    values = [1.0 + index / 1000 for index in range(count)]
    found = paired_ratio(values, [1.0] * count)
    assert found.low == values[rank]
    assert found.high == values[-1 - rank]


def test_a_few_disturbed_pairs_move_nothing() -> None:
    quiet = [1.0] * 30
    noisy = [*quiet[:-5], 50.0, 60.0, 70.0, 80.0, 90.0]
    assert paired_ratio(noisy, quiet).median == 1.0
    assert paired_ratio(noisy, quiet).high == 1.0


def test_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(200):
        slower = [1.1 * rng.lognormvariate(0.0, 0.2) for _ in range(40)]
        plain = [rng.lognormvariate(0.0, 0.2) for _ in range(40)]
        found = paired_ratio(slower, plain)
        held += found.low <= 1.1 <= found.high
    assert 184 <= held <= 200


def test_the_quiet_quarter_tells_a_small_difference_under_heavy_noise() -> None:
    rng = random.Random(3)

    def taken(seconds: float) -> list[float]:
        return [seconds + rng.expovariate(4.0) for _ in range(2000)]

    found = quiet_ratio(taken(1.05), taken(1.0))
    assert found.median == pytest.approx(1.05, abs=0.02)
    assert found.low < found.median < found.high
    assert found.high - found.low < 0.05


def test_medians_are_compared_where_a_single_difference_may_be_nothing() -> None:
    found = ratio_of_medians([0.0, 2.0, 3.0, 2.0, 2.0], [1.0, 0.0, 1.0, -1.0, 1.0])
    assert (found.median, found.pairs) == (2.0, 5)
    assert found.low <= 2.0 <= found.high


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        paired_ratio([], [])
    with pytest.raises(ValueError, match="at least one pair"):
        quiet_ratio([], [])
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [])


def test_geometric_mean_is_that_of_ratios() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
