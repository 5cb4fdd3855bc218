"""All GPUs with their tenants as plain columns.

They include what remains on each GPU after its first tenants, in order of release time, have left.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.capacity.cluster import GPUCapacity, NodeCapacity, Tenant
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers
from gpujob_operator.decide.packing.party import SEVERAL

SLOWDOWN_PERCENT_MAX = 100


@dataclass(frozen=True, slots=True)
class RemainingTenancy:
    """`x[gpu, k]`: what remains on a GPU after its first k tenants have left, by release time."""

    memory_bytes: Integers
    utilization_percent: Floats
    # The smallest slowdown that any remaining tenant allows.
    slowdown_percent: Integers
    whole_gpu: Booleans
    # What the remaining tenants have in common, as in `Party`.
    namespace: Integers
    sharing_group: Integers
    # When the last of the departed tenants has left, as a Unix time in seconds.
    since: Floats
    # Columns of the tenants, in the order in which they leave.
    order: Integers


@dataclass(slots=True)
class Tenancy:
    """Rows are GPUs, in the order of nodes and of the GPUs on them.

    Read it before the next one is computed: arrays are updated in place, and lists are replaced.
    """

    nodes: list[NodeCapacity]
    # Changes if a row may stand for another GPU.
    order_version: int
    open_nodes: Booleans
    # CPU, host memory and pods by node: what is free, and what would be without the jobs' pods.
    host_free: Integers
    host_without_jobs: Integers
    # By row, like all fields below.
    gpus: list[GPUCapacity]
    # Sorted by job UID.
    tenants: list[list[Tenant]]
    node_of: Integers
    # Rank of the GPU's UUID among all UUIDs.
    rank: Integers
    models: NDArray[np.object_]
    free_bytes: Integers
    usable_after_release_bytes: Integers
    usable: Booleans
    has_external_use: Booleans
    awaiting_reading: Booleans
    # Number of tenants.
    count: Integers
    stay: RemainingTenancy


def sums_left(values: NDArray[Any]) -> NDArray[Any]:
    """Returns, for each row, the sum that remains after the first 0, 1, ... tenants have left."""
    return np.pad(np.cumsum(values[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))


def least_left(values: Integers) -> Integers:
    """Returns, for each row, the minimum over the remaining tenants, or the maximum value without
    any.
    """
    found = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    return np.pad(found, ((0, 0), (0, 1)), constant_values=SLOWDOWN_PERCENT_MAX)


def common_left(names: Integers) -> Integers:
    """Returns the name that all remaining tenants have, or `SEVERAL` if they differ.

    Columns without a tenant are negative.
    """
    greatest = np.maximum.accumulate(names[:, ::-1], axis=1)
    of_somebody = np.where(names < 0, np.iinfo(np.int64).max, names)
    least = np.minimum.accumulate(of_somebody[:, ::-1], axis=1)
    common = np.where(greatest == least, greatest, SEVERAL)[:, ::-1]
    return np.pad(common, ((0, 0), (0, 1)), constant_values=SEVERAL)
