"""Filters the nodes and GPUs that can take a request. `placement.diagnosis` explains why none can.

Amounts are exact (bytes, milli-CPU, percent), unlike the steps in which free capacity is valued.
"""

import numpy as np

from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import Demand
from gpujob_operator.decide.packing.request import Request


def host_fits(arrays: NodeArrays, rows: Integers, demand: Demand, allowed: Booleans) -> Booleans:
    """Rows that may be used and have enough free CPU and host memory."""
    return (
        allowed[rows]
        & (arrays.cpu_milli_free[rows] >= demand.cpu_milli)
        & (arrays.memory_bytes_free[rows] >= demand.memory_bytes)
    )


def free_gpus(arrays: NodeArrays, rows: Integers, request: Request) -> Booleans:
    """GPUs that can take one GPU's part of the request: [row, column]."""
    demand = request.demand
    fits = _open_gpus(arrays, rows, demand)
    fits &= arrays.memory_free[rows] >= demand.gpu_memory_bytes
    over = _over_percent(arrays, rows, demand, request.utilization_limit_percent)
    return fits & (arrays.idle[rows] | ((over <= 0) & _may_join(arrays, rows, request)))


def _may_join(arrays: NodeArrays, rows: Integers, request: Request) -> Booleans:
    """`party.may_join` for each GPU."""
    namespace, group = request.party
    return (arrays.namespace[rows] == namespace) | (arrays.sharing_group[rows] == group)


def _of_model(arrays: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    present = arrays.memory_total[rows] > 0
    if not demand.models:
        return present
    of_kind = np.array([model in demand.models for model, _ in arrays.kinds], dtype=np.bool_)
    return present & of_kind[arrays.kind[rows]] if len(of_kind) else present


def _open_gpus(arrays: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    gpus = _of_model(arrays, rows, demand) & arrays.usable[rows] & ~arrays.held_whole[rows]
    return gpus & arrays.idle[rows] if demand.exclusive else gpus


def _over_percent(
    arrays: NodeArrays, rows: Integers, demand: Demand, limit_percent: float
) -> Floats:
    """Utilization above what the GPU's tenants and the request itself accept."""
    limit = np.minimum(arrays.utilization_limit[rows], limit_percent)
    return arrays.utilization_used[rows] + demand.utilization_percent - limit
