"""What remains on each GPU after its first tenants, in the order of their ends, have left: plain
columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers

SLOWDOWN_PERCENT_MAX = 100


@dataclass(frozen=True, slots=True)
class Stay:
    """What is on each card, by row, once so many tenants have left (by column) in the order of
    their ends."""

    memory_bytes: Integers
    utilization_percent: Floats
    # The least that any of them allows.
    slowdown_percent: Integers
    whole_card: Booleans
    # When the last of those who left is gone, in seconds since 1970.
    since: Floats
    # Columns of the tenants, in the order in which they leave.
    order: Integers


def sums_left(values: NDArray[Any]) -> NDArray[Any]:
    """Of each row, what is left of the sum once the first 0, 1, ... are gone."""
    return np.pad(np.cumsum(values[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))


def least_left(values: Integers) -> Integers:
    """The least of those that are left, likewise; of nobody the most."""
    found = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    return np.pad(found, ((0, 0), (0, 1)), constant_values=SLOWDOWN_PERCENT_MAX)
