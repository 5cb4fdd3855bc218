"""Filters the nodes and GPUs that can take a request. `placement.diagnosis` explains why none can.

Amounts are exact (bytes, milli-CPU, percent), unlike the steps in which free capacity is valued.
"""

import numpy as np

from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import Demand


def host_fits(fleet: NodeArrays, rows: Integers, demand: Demand, allowed: Booleans) -> Booleans:
    """Rows that may be used and have enough free CPU and host memory."""
    return (
        allowed[rows]
        & (fleet.cpu_milli_free[rows] >= demand.cpu_milli)
        & (fleet.memory_bytes_free[rows] >= demand.memory_bytes)
    )


def free_gpus(
    fleet: NodeArrays, rows: Integers, demand: Demand, utilization_limit_percent: float
) -> Booleans:
    """GPUs that can take one GPU's part of the request: [row, column]."""
    fits = _open_gpus(fleet, rows, demand)
    fits &= fleet.memory_free[rows] >= demand.gpu_memory_bytes
    return fits & (
        fleet.idle[rows] | (_over_percent(fleet, rows, demand, utilization_limit_percent) <= 0)
    )


def _of_model(fleet: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    present = fleet.memory_total[rows] > 0
    if not demand.models:
        return present
    of_kind = np.array([model in demand.models for model, _ in fleet.kinds], dtype=np.bool_)
    return present & of_kind[fleet.kind[rows]] if len(of_kind) else present


def _open_gpus(fleet: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    gpus = _of_model(fleet, rows, demand) & fleet.usable[rows] & ~fleet.held_whole[rows]
    return gpus & fleet.idle[rows] if demand.exclusive else gpus


def _over_percent(
    fleet: NodeArrays, rows: Integers, demand: Demand, limit_percent: float
) -> Floats:
    """Utilization above what the GPU's tenants and the request itself accept."""
    limit = np.minimum(fleet.utilization_limit[rows], limit_percent)
    return fleet.utilization_used[rows] + demand.utilization_percent - limit
