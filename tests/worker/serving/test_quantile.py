"""A quantile of the newest values is the one of a sorted list."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving.quantile import RecentQuantile

pytestmark = pytest.mark.any_torch


@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=60),
    size=st.integers(1, 20),
    percent=st.sampled_from([0.0, 50.0, 99.0, 99.5, 100.0]),
)
def test_it_equals_that_of_the_sorted_newest_values(
    values: list[int], size: int, percent: float
) -> None:
    quantile = RecentQuantile(size)
    for value in values:
        quantile.add(value)
    newest = sorted(values[-size:])
    assert len(quantile) == len(newest)
    found = quantile.value(percent, -100.0)
    assert found in newest
    # At least `percent` percent are not above it, and fewer are below it.
    assert sum(value <= found for value in newest) * 100 >= percent * len(newest)
    below = sum(value < found for value in newest)
    assert below < max(1, math.ceil(len(newest) * percent / 100))


def test_without_values_it_is_the_default() -> None:
    assert RecentQuantile(3).value(99.0, 0.25) == 0.25
