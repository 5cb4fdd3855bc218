"""The value of every node's free capacity to the mix, renewed only for nodes that changed.

A node's `worth` is the sum over its GPUs. `usable` is the expected capacity that a stream of one
typical class could fill before GPUs, CPU or memory run out. `stranded` is the value of GPUs beyond
what the node's free CPU or memory can serve. The cost of a placement is its reduction of the first
two plus its increase of the third.
"""

from copy import copy
from dataclasses import dataclass

import numpy as np

from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import MEMORY_STEPS, Demand, WorkloadMix
from gpujob_operator.decide.packing.tables import Tables

# Fixed weights of the score's terms relative to a GPU's worth. See docs/design/0010-placement.md.
USABLE_WEIGHT = 0.1
STRANDED_WEIGHT = 0.4
# A GPU counts as served by this part of the average request's CPU and memory per GPU.
SERVED_SHARE = 0.75
# A model is scarce from this ratio on. It is the model's share of expected restricted demand
# divided by its share of idle capacity, so 1 is exactly enough.
SCARCE_FROM = 0.5
FULL_STATE = 0
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class CostTerms:
    """What a placement costs on a row, in GPUs. The weighted sum is minimized."""

    worth: Floats
    usable: Floats
    stranded: Floats

    @property
    def total(self) -> Floats:
        return self.worth + USABLE_WEIGHT * self.usable + STRANDED_WEIGHT * self.stranded


class FragmentationCost:
    """The fragmentation cost on these arrays for a mix. It keeps one row of figures per node."""

    def __init__(self, arrays: NodeArrays, mix: WorkloadMix) -> None:
        rows, columns = arrays.usable.shape
        self.tables = Tables.of(mix, arrays.kinds)
        self.state = np.zeros((rows, columns), dtype=np.int64)
        self.worth = np.zeros(rows)
        self.usable = np.zeros(rows)
        self.slots = np.zeros((rows, self.tables.slots.shape[1]))
        self.model = np.zeros(rows, dtype=np.int64)
        self._seen = 0
        self.renew(arrays)

    def reordered(self, order: Integers) -> "FragmentationCost":
        """Returns the same figures for arrays with their rows in this order."""
        other = copy(self)
        other.state, other.worth, other.usable = (
            self.state[order],
            self.worth[order],
            self.usable[order],
        )
        other.slots, other.model = self.slots[order], self.model[order]
        return other

    def renew(self, arrays: NodeArrays) -> None:
        """Renews the rows that changed."""
        if self._seen == arrays.clock:
            return
        if len(arrays.kinds) != len(self.tables.kinds):
            self.tables = Tables.of(self.tables.mix, arrays.kinds)
            self._seen = 0
        rows = np.flatnonzero(arrays.changed_at_clock > self._seen)
        self._seen = arrays.clock
        tables = self.tables
        self.state[rows] = gpu_states(arrays, tables, rows)
        self.worth[rows] = tables.worth[self.state[rows]].sum(axis=1)
        self.slots[rows] = tables.slots[self.state[rows]].sum(axis=1)
        self.usable[rows] = self._usable(
            self.slots[rows], arrays.cpu_milli_free[rows], arrays.memory_bytes_free[rows]
        )
        if rows.size and tables.models:
            number = {model: index for index, model in enumerate(tables.models)}
            of_kind = np.array([number[model] for model, _ in tables.kinds])
            self.model[rows] = of_kind[arrays.kind[rows, 0]]

    def _usable(self, slots: Floats, cpu_milli: Integers, memory_bytes: Integers) -> Floats:
        """Returns the expected GPUs that the typical classes, each alone, can use, by row."""
        tables = self.tables
        workers = np.floor(slots * tables.workers_per_gpu + ROUNDING)
        for free, per_milli in (
            (cpu_milli, tables.workers_per_cpu_milli),
            (memory_bytes, tables.workers_per_byte),
        ):
            served = np.maximum(free, 0)[:, None] * per_milli
            served += ROUNDING
            np.minimum(workers, np.floor(served, out=served), out=workers)
        return workers @ tables.value

    def _stranded(self, worth: Floats, cpu_milli: Integers, memory_bytes: Integers) -> Floats:
        """Returns the GPUs' worth beyond what free CPU and free memory serve, by row."""
        beyond = np.zeros(len(worth))
        for free, per_gpu in (
            (cpu_milli, self.tables.cpu_milli_per_gpu),
            (memory_bytes, self.tables.memory_bytes_per_gpu),
        ):
            if per_gpu > 0:
                beyond += np.maximum(worth - free / (SERVED_SHARE * per_gpu), 0.0)
        return beyond

    def costs(
        self, arrays: NodeArrays, rows: Integers, gpus: Integers, demand: Demand
    ) -> CostTerms:
        """Returns the cost of placing the demand on `gpus` [row, n] of `rows`. n is the demand's
        GPUs.
        """
        tables = self.tables
        before, after = self._states(arrays, rows, gpus, demand)
        worth_before = self.worth[rows]
        worth_after = worth_before + (tables.worth[after] - tables.worth[before]).sum(axis=1)
        slots = self.slots[rows]
        for gpu in range(gpus.shape[1]):
            slots += tables.slots[after[:, gpu]]
            slots -= tables.slots[before[:, gpu]]
        cpu, memory = arrays.cpu_milli_free[rows], arrays.memory_bytes_free[rows]
        cpu_after, memory_after = cpu - demand.cpu_milli, memory - demand.memory_bytes
        return CostTerms(
            worth=worth_before - worth_after,
            usable=self.usable[rows] - self._usable(slots, cpu_after, memory_after),
            stranded=self._stranded(worth_after, cpu_after, memory_after)
            - self._stranded(worth_before, cpu, memory),
        )

    def gpu_costs(self, arrays: NodeArrays, rows: Integers, demand: Demand) -> Floats:
        """Returns the worth that every GPU [row, column] would lose to one GPU's part of the
        demand.
        """
        columns = arrays.usable.shape[1]
        every = np.broadcast_to(np.arange(columns), (len(rows), columns))
        before, after = self._states(arrays, rows, every, demand)
        return self.tables.worth[before] - self.tables.worth[after]

    def _states(
        self, arrays: NodeArrays, rows: Integers, gpus: Integers, demand: Demand
    ) -> tuple[Integers, Integers]:
        before = self.state[rows[:, None], gpus]
        if demand.exclusive:
            return before, np.full_like(before, FULL_STATE)
        at = (rows[:, None], gpus)
        after = _shared_state(
            self.tables,
            arrays.kind[at],
            arrays.memory_total[at],
            arrays.memory_free[at] - demand.gpu_memory_bytes,
            arrays.utilization_limit[at] - arrays.utilization_used[at] - demand.utilization_percent,
        )
        return before, after

    def scarcity(self) -> Floats | None:
        """Returns the price of one GPU's worth on every row, if restricted requests need its model.

        The capacity of a model that restricted requests will need is their share of the mix times
        the whole capacity. It is spread over the models that they accept in proportion to these
        models' capacity. Returns None if no request is restricted to some of the models.
        """
        tables = self.tables
        if not tables.restricted_share.size:
            return None
        idle = np.bincount(self.model, weights=self.worth, minlength=len(tables.models))
        accessible = tables.restricted_access @ idle
        per_worth = np.divide(
            tables.restricted_share * idle.sum(),
            accessible,
            out=np.zeros_like(accessible),
            where=accessible > 0,
        )
        ratio = per_worth @ tables.restricted_access
        return np.maximum(ratio - SCARCE_FROM, 0.0)[self.model]


def gpu_states(arrays: NodeArrays, tables: Tables, rows: Integers) -> Integers:
    """Returns the state of every GPU of the rows, for the look-up tables."""
    kind = arrays.kind[rows]
    shared = _shared_state(
        tables,
        kind,
        arrays.memory_total[rows],
        arrays.memory_free[rows],
        arrays.utilization_limit[rows] - arrays.utilization_used[rows],
    )
    idle: Booleans = arrays.idle[rows] & (arrays.memory_free[rows] >= arrays.memory_total[rows])
    open_gpus = arrays.usable[rows] & ~arrays.held_whole[rows]
    if not len(tables.base):
        return np.zeros_like(kind)
    return np.where(open_gpus, np.where(idle, tables.idle[kind], shared), FULL_STATE)


def _shared_state(
    tables: Tables,
    kind: Integers,
    memory_total: Integers,
    memory_free: Integers,
    utilization_free: Floats,
) -> Integers:
    if not len(tables.base):
        return np.zeros_like(kind)
    steps = tables.utilization_steps
    memory = memory_free * MEMORY_STEPS // np.maximum(memory_total, 1)
    memory = np.minimum(np.maximum(memory, 0), MEMORY_STEPS)
    state = tables.base[kind] + memory * (steps + 1)
    if steps:
        steps_free = np.floor(utilization_free * (steps / 100) + ROUNDING)
        state = state + np.minimum(np.maximum(steps_free, 0), steps).astype(np.int64)
    return state
