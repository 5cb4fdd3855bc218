"""Prices of requests: against problems whose best packing is known, and their defining bounds."""

import itertools

import numpy as np
import pytest

from gpujob_operator.decide.packing.cutting_stock import (
    free_space_value,
    packing_bound,
    request_prices,
)


def test_nothing_asked_for_has_no_prices() -> None:
    assert request_prices([], [], (100, 0)) == []
    assert packing_bound((), (), (10, 0)).tolist() == [[0.0]] * 11


@pytest.mark.parametrize(
    ("size", "price"), [(100, 1.0), (81, 1.0), (51, 1.0), (50, 0.5), (34, 0.5), (33, 1 / 3)]
)
def test_one_size_costs_its_part_of_a_gpu(size: int, price: float) -> None:
    assert request_prices([(size, 0)], [7.0], (100, 0)) == pytest.approx([price])


def test_a_request_that_fills_room_that_is_left_over_anyway_costs_nothing() -> None:
    # Each large one leaves room for a small one, and there are fewer small ones than large ones.
    assert request_prices([(81, 0), (16, 0)], [10.0, 1.0], (100, 0)) == pytest.approx([1.0, 0.0])


def test_a_request_that_needs_gpus_of_its_own_has_a_price() -> None:
    # The small ones are so many that most of them fill GPUs of their own, six on a GPU.
    prices = request_prices([(81, 0), (16, 0)], [1.0, 60.0], (100, 0))
    assert prices == pytest.approx([5 / 6, 1 / 6])


def test_partners_share_the_gpu() -> None:
    prices = request_prices([(65, 0), (35, 0)], [5.0, 5.0], (100, 0))
    assert sum(prices) == pytest.approx(1.0)


def test_both_dimensions_count() -> None:
    # By memory three would fit, by utilization only two.
    assert request_prices([(30, 10)], [1.0], (100, 20)) == pytest.approx([0.5])


def test_no_pattern_is_worth_more_than_a_gpu_and_demand_is_covered() -> None:
    sizes = [(81, 11), (65, 10), (47, 6), (32, 5), (23, 7), (16, 3)]
    demand = [10.0, 2.5, 7.5, 3.3, 1.4, 0.7]
    prices = request_prices(sizes, demand, (100, 20))
    counts = itertools.product(*(range(100 // memory + 1) for memory, _ in sizes))
    feasible = [
        pattern
        for pattern in counts
        if sum(n * size[0] for n, size in zip(pattern, sizes, strict=True)) <= 100
        and sum(n * size[1] for n, size in zip(pattern, sizes, strict=True)) <= 20
    ]
    worths = np.array(feasible) @ np.array(prices)
    assert worths.max() == pytest.approx(1.0)
    # By duality the prices add up to the fewest GPUs; no packing needs fewer than its volume.
    gpus = sum(price * count for price, count in zip(prices, demand, strict=True))
    assert gpus >= sum(n * memory for n, (memory, _) in zip(demand, sizes, strict=True)) / 100


def test_worth_of_room_is_the_best_sum_that_fits() -> None:
    worth = free_space_value([(50, 0), (30, 0)], [0.5, 0.4], (100, 0))[:, 0]
    assert worth[29] == 0.0
    assert worth[30] == pytest.approx(0.4)
    assert worth[59] == pytest.approx(0.5)
    assert worth[60] == pytest.approx(0.8)
    assert worth[100] == pytest.approx(1.2)


def test_worth_never_falls_with_room() -> None:
    worth = packing_bound(((47, 6), (32, 5), (23, 7)), (0.5, 0.3, 0.2), (100, 20))
    assert (np.diff(worth, axis=0) >= -1e-12).all()
    assert (np.diff(worth, axis=1) >= -1e-12).all()
    assert worth[-1, -1] <= 1.0 + 1e-9


def test_a_mix_that_moved_a_little_keeps_its_worth() -> None:
    sizes = ((65, 0), (35, 0), (47, 0))
    one = packing_bound(sizes, (0.400, 0.350, 0.250), (100, 0))
    other = packing_bound(sizes, (0.401, 0.349, 0.250), (100, 0))
    assert one is other
    with pytest.raises(ValueError, match="read-only"):
        one[0, 0] = 1.0
