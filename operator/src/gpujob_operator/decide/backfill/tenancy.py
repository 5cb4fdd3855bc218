"""All GPUs with their tenants as plain columns, and what remains on each once its first tenants, in
the order of their ends, have left."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.capacity.cluster import GPUCapacity, NodeCapacity, Tenant
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers

SLOWDOWN_PERCENT_MAX = 100


@dataclass(frozen=True, slots=True)
class RemainingTenancy:
    """`x[gpu, k]`: what remains on a GPU after its first k tenants, ordered by release time, have
    left."""

    memory_bytes: Integers
    utilization_percent: Floats
    # The least that any of them allows.
    slowdown_percent: Integers
    whole_gpu: Booleans
    # When the last of those who left is gone, in seconds since 1970.
    since: Floats
    # Columns of the tenants, in the order in which they leave.
    order: Integers


@dataclass(slots=True)
class Tenancy:
    """Rows are GPUs in the order of nodes and of the GPUs on them. Read it at once: arrays change
    with the next one that is asked for, lists are replaced."""

    nodes: list[NodeCapacity]
    # Another number whenever a row may be another GPU.
    order_version: int
    open_nodes: Booleans
    # By row, as all that follows.
    gpus: list[GPUCapacity]
    # By UID.
    tenants: list[list[Tenant]]
    node_of: Integers
    # The place of the GPU's UUID among all.
    rank: Integers
    models: NDArray[np.object_]
    free_bytes: Integers
    usable_after_release_bytes: Integers
    usable: Booleans
    has_external_use: Booleans
    awaiting_reading: Booleans
    # How many tenants.
    count: Integers
    stay: RemainingTenancy


def sums_left(values: NDArray[Any]) -> NDArray[Any]:
    """Of each row, what is left of the sum once the first 0, 1, ... are gone."""
    return np.pad(np.cumsum(values[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))


def least_left(values: Integers) -> Integers:
    """The least of those that are left, likewise; of nobody the most."""
    found = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    return np.pad(found, ((0, 0), (0, 1)), constant_values=SLOWDOWN_PERCENT_MAX)
