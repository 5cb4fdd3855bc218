"""The value of free capacity on a GPU: prices of requests from the cutting-stock problem.

The problem is to pack all observed jobs at once on as few GPUs as possible. Its linear relaxation
(Gilmore and Gomory, Operations Research 9, 1961) gives a price for every size of request, which is
the fraction of a GPU that one more such request costs. The value of a GPU's free capacity is then
the largest sum of prices that still fits into it. Capacity into which no request fits has no value.
Capacity that exceeds all requests has no value either.

Sizes are pairs of whole steps, (memory, utilization), of a GPU with `shape` steps.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import log2

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Size = tuple[int, int]

PATTERNS_MAX = 400
TOLERANCE = 1e-9
EIGHTHS = 8
# In a nearby mix, every other size is more frequent and the rest is less frequent by this factor.
NEARBY = 1.1


def packing_bound(sizes: tuple[Size, ...], shares: tuple[float, ...], shape: Size) -> Floats:
    """Returns the value of free capacity for a mix of sizes with their shares, each above 0.

    The array is read-only. Optimal prices jump where the mix crosses from one best packing to the
    next. Prices are therefore means over four nearby mixes, and shares are rounded to eighths of an
    octave. A mix that changed by a few jobs then gives the same cached result.
    """
    eighths = tuple(round(log2(share) * EIGHTHS) for share in shares)
    return _worth_of_rounded(sizes, eighths, shape)


@lru_cache(maxsize=64)
def _worth_of_rounded(sizes: tuple[Size, ...], eighths: tuple[int, ...], shape: Size) -> Floats:
    if not sizes:
        return free_space_value((), (), shape)
    shares = 2.0 ** (np.array(eighths) / EIGHTHS)
    index = np.arange(len(sizes))
    signs = [1 - 2 * (index >> bit & 1) for bit in (0, 1)]
    nearby = [shares * NEARBY**sign for both in signs for sign in (both, -both)]
    prices = np.mean([request_prices(sizes, mix.tolist(), shape) for mix in nearby], axis=0)
    worth = free_space_value(sizes, prices, shape)
    worth.setflags(write=False)
    return worth


def request_prices(sizes: Sequence[Size], demand: Sequence[float], shape: Size) -> list[float]:
    """Returns the price of every size, in GPUs, at the optimum of the relaxation.

    `demand` is how often each size is requested, each above 0. Each size must fit the GPU and take
    at least one step of it. The method is revised simplex with column generation. A bound on the
    number of columns ends it, and prices are scaled down so that no pattern is ever worth more than
    a GPU.
    """
    if not sizes:
        return []
    basis = np.diag([float(_copies_max(size, shape)) for size in sizes])
    wanted = np.array(demand, dtype=np.float64)
    prices = np.zeros(len(sizes))
    best = 1.0
    for _ in range(PATTERNS_MAX):
        prices = np.maximum(np.linalg.solve(basis.T, np.ones(len(sizes))), 0.0)
        worth = free_space_value(sizes, prices, shape)
        best = float(worth[shape])
        if best <= 1.0 + TOLERANCE:
            break
        pattern = _best_pattern(sizes, prices, worth, shape)
        leaving = _leaving(basis, pattern, wanted)
        if leaving is None:
            break
        basis[:, leaving] = pattern
    return (prices / max(best, 1.0)).tolist()


def free_space_value(
    sizes: Sequence[Size], prices: Sequence[float] | Floats, shape: Size
) -> Floats:
    """Returns the value of free capacity [memory steps, utilization steps].

    It is the largest sum of prices that fits.
    """
    worth = np.zeros((shape[0] + 1, shape[1] + 1))
    for (memory, utilization), price in zip(sizes, prices, strict=True):
        if price <= 0.0:
            continue
        rows, columns = shape[0] + 1 - memory, shape[1] + 1 - utilization
        for _ in range(_copies_max((memory, utilization), shape)):
            with_one = worth[:rows, :columns] + price
            np.maximum(worth[memory:, utilization:], with_one, out=worth[memory:, utilization:])
    return worth


def _copies_max(size: Size, shape: Size) -> int:
    """Returns how often the size fits on an idle GPU."""
    limits = [total // part for part, total in zip(size, shape, strict=True) if part > 0]
    assert limits, "a size takes at least one step"
    return min(limits)


def _best_pattern(sizes: Sequence[Size], prices: Floats, worth: Floats, shape: Size) -> Floats:
    """Returns the counts of each size in a pattern with the value of an idle GPU."""
    counts = np.zeros(len(sizes))
    free = shape
    while True:
        for index, (memory, utilization) in enumerate(sizes):
            left = (free[0] - memory, free[1] - utilization)
            if prices[index] <= 0.0 or min(left) < 0:
                continue
            if worth[left] + prices[index] >= worth[free] - TOLERANCE:
                counts[index] += 1
                free = left
                break
        else:
            return counts


def _leaving(basis: Floats, pattern: Floats, wanted: Floats) -> int | None:
    """Returns the basic pattern that runs out first if the new one is used, or the first
    on ties.
    """
    direction = np.linalg.solve(basis, pattern)
    amount = np.maximum(np.linalg.solve(basis, wanted), 0.0)
    shrinking = direction > TOLERANCE
    if not shrinking.any():
        return None
    ratio = np.full(len(wanted), np.inf)
    ratio[shrinking] = amount[shrinking] / direction[shrinking]
    return int(np.argmin(ratio))
