"""The GPUs of all nodes as arrays: what placement reads, and what a placement changes.

The arrays are built once from plain values. Afterwards only changed nodes are replaced. Rows keep
the order in which nodes were given, and GPUs the order within their node, so ties are always broken
in the same way. `changed_at_clock` has the clock of each row's last change, so that values computed
from a row can be renewed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.packing.party import SEVERAL
from gpujob_operator.decide.packing.states import GPUState, NodeState, WorkerAllocation

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


# Value of columns without a GPU.
_NO_GPU = GPUState("", "", 0, 0, idle=False, usable=False)


@dataclass(slots=True)
class NodeArrays:
    """Arrays over nodes (rows) and GPUs (columns). A column without a GPU is not usable."""

    names: tuple[str, ...]
    uuids: list[tuple[str, ...]]
    kinds: list[tuple[str, int]]
    cpu_milli_free: Integers
    memory_bytes_free: Integers
    pods_free: Integers
    eligible: Booleans
    spot: Booleans
    price: Floats
    risk: Floats
    kind: Integers
    memory_total: Integers
    memory_free: Integers
    utilization_used: Floats
    utilization_limit: Floats
    idle: Booleans
    held_whole: Booleans
    usable: Booleans
    link_group: Integers
    # What the tenants have in common, as in `Party`.
    namespace: Integers
    sharing_group: Integers
    changed_at_clock: Integers
    clock: int = 1

    @classmethod
    def of(cls, nodes: Iterable[NodeState]) -> "NodeArrays":
        """Builds the arrays. Raises ValueError if two nodes have the same name."""
        states = tuple(nodes)
        names = tuple(node.name for node in states)
        if len(set(names)) != len(names):
            raise ValueError("a node's name came twice")
        columns = max((len(node.gpus) for node in states), default=0)
        fleet = _empty(names, max(columns, 1))
        fleet._fill(range(len(states)), states)
        return fleet

    def renew(self, row: int, node: NodeState) -> None:
        """Calls `renew_all` for one node."""
        self.renew_all((row,), (node,))

    def renew_all(self, rows: Sequence[int], nodes: Sequence[NodeState]) -> None:
        """Stores the new states of the nodes in these rows.

        Raises ValueError if a node's name is not the row's, or if a node has more GPUs than there
        are columns.
        """
        for row, node in zip(rows, nodes, strict=True):
            if node.name != self.names[row]:
                raise ValueError(f"row {row} is {self.names[row]}, not {node.name}")
            if len(node.gpus) > self.usable.shape[1]:
                raise ValueError(f"{node.name} has {len(node.gpus)} GPUs: build the fleet again")
        self._fill(rows, nodes)

    def copy(self) -> "NodeArrays":
        """Returns an independent copy for trials. It takes about 100 microseconds for
        10,000 GPUs.
        """
        return replace(
            self,
            uuids=list(self.uuids),
            kinds=list(self.kinds),
            cpu_milli_free=self.cpu_milli_free.copy(),
            memory_bytes_free=self.memory_bytes_free.copy(),
            pods_free=self.pods_free.copy(),
            eligible=self.eligible.copy(),
            spot=self.spot.copy(),
            price=self.price.copy(),
            risk=self.risk.copy(),
            kind=self.kind.copy(),
            memory_total=self.memory_total.copy(),
            memory_free=self.memory_free.copy(),
            utilization_used=self.utilization_used.copy(),
            utilization_limit=self.utilization_limit.copy(),
            idle=self.idle.copy(),
            held_whole=self.held_whole.copy(),
            usable=self.usable.copy(),
            link_group=self.link_group.copy(),
            namespace=self.namespace.copy(),
            sharing_group=self.sharing_group.copy(),
            changed_at_clock=self.changed_at_clock.copy(),
        )

    def copy_rows(self, other: "NodeArrays", rows: Integers) -> None:
        """Copies these rows from `other`, of which these arrays are a copy."""
        if not len(rows):
            return
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                value[rows] = getattr(other, column.name)[rows]
        for row in rows.tolist():
            self.uuids[row] = other.uuids[row]
        self.kinds[:] = other.kinds
        self.clock += 1
        self.changed_at_clock[rows] = self.clock

    def reordered(self, order: Integers) -> "NodeArrays":
        """Returns the same nodes, with row `order[n]` of these arrays as row n."""
        rows = order.tolist()
        arrays = {
            column.name: value[order]
            for column in fields(self)
            if isinstance(value := getattr(self, column.name), np.ndarray)
        }
        names = tuple(self.names[row] for row in rows)
        uuids = [self.uuids[row] for row in rows]
        return replace(self, names=names, uuids=uuids, kinds=list(self.kinds), **arrays)

    def place(self, row: int, gpus: Sequence[int], allocation: WorkerAllocation) -> None:
        """Subtracts a worker's resources. The caller has checked that they are free."""
        self.cpu_milli_free[row] -= allocation.cpu_milli
        self.memory_bytes_free[row] -= allocation.memory_bytes
        self.pods_free[row] -= 1
        for gpu in gpus:
            self.memory_free[row, gpu] -= allocation.gpu_memory_bytes
            self.utilization_used[row, gpu] += allocation.utilization_percent
            alone = self.idle[row, gpu]
            present = np.inf if alone else self.utilization_limit[row, gpu]
            self.utilization_limit[row, gpu] = min(present, allocation.utilization_limit_percent)
            for names, name in (
                (self.namespace, allocation.party.namespace),
                (self.sharing_group, allocation.party.group),
            ):
                names[row, gpu] = name if alone or names[row, gpu] == name else SEVERAL
            self.idle[row, gpu] = False
            self.held_whole[row, gpu] |= allocation.whole_gpu
        self._touch(row)

    def grow(
        self, row: int, gpus: Sequence[int], memory_bytes: int, utilization_percent: float
    ) -> None:
        """Subtracts what a present job takes in addition to what it had."""
        for gpu in gpus:
            self.memory_free[row, gpu] -= memory_bytes
            self.utilization_used[row, gpu] += utilization_percent
        self._touch(row)

    def close(self, row: int, gpus: Sequence[int]) -> None:
        """Closes GPUs to new placements, for example GPUs that are nominated for an earlier job."""
        self.usable[row, list(gpus)] = False
        self._touch(row)

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays, in bytes."""
        values = (getattr(self, field.name) for field in fields(self))
        return sum(value.nbytes for value in values if isinstance(value, np.ndarray))

    @property
    def gpu_count(self) -> int:
        return sum(len(uuids) for uuids in self.uuids)

    def kinds_in_order(self) -> list[tuple[str, int]]:
        """Returns the kinds of GPUs in the order in which new arrays would number them."""
        counts = np.array([len(uuids) for uuids in self.uuids], dtype=np.int64)
        present = np.arange(self.kind.shape[1]) < counts[:, None]
        numbers, first = np.unique(self.kind[present], return_index=True)
        return [self.kinds[number] for number in numbers[np.argsort(first)]]

    def _touch(self, row: int) -> None:
        self.clock += 1
        self.changed_at_clock[row] = self.clock

    def _fill(self, rows: Sequence[int], nodes: Sequence[NodeState]) -> None:
        """Fills column by column, because an assignment to an array costs as much for one row as
        for many.
        """
        if not rows:
            return
        at = np.array(rows, dtype=np.int64)
        for row, node in zip(rows, nodes, strict=True):
            self.uuids[row] = tuple([gpu.uuid for gpu in node.gpus])
        self.cpu_milli_free[at] = [node.cpu_milli_free for node in nodes]
        self.memory_bytes_free[at] = [node.memory_bytes_free for node in nodes]
        self.pods_free[at] = [node.pods_free for node in nodes]
        self.eligible[at] = [node.eligible for node in nodes]
        self.spot[at] = [node.spot for node in nodes]
        prices = (node.price_per_gpu_hour for node in nodes)
        self.price[at] = [np.inf if price is None else price for price in prices]
        self.risk[at] = [node.interruptions_per_hour for node in nodes]
        columns = self.usable.shape[1]
        # The padding removes all values of a GPU that is gone.
        here = [(*node.gpus, *[_NO_GPU] * (columns - len(node.gpus))) for node in nodes]
        self.kind[at] = [[self._kind_of(gpu) for gpu in gpus] for gpus in here]
        self.memory_total[at] = [[gpu.memory_total_bytes for gpu in gpus] for gpus in here]
        self.memory_free[at] = [[gpu.memory_free_bytes for gpu in gpus] for gpus in here]
        self.utilization_used[at] = [[c.utilization_used_percent for c in gpus] for gpus in here]
        self.utilization_limit[at] = [
            [gpu.utilization_limit_percent for gpu in gpus] for gpus in here
        ]
        self.idle[at] = [[gpu.idle for gpu in gpus] for gpus in here]
        self.held_whole[at] = [[gpu.held_whole for gpu in gpus] for gpus in here]
        usable = [[gpu.usable and gpu.memory_total_bytes > 0 for gpu in gpus] for gpus in here]
        self.usable[at] = usable
        self.link_group[at] = [[gpu.link_group for gpu in gpus] for gpus in here]
        self.namespace[at] = [[gpu.party.namespace for gpu in gpus] for gpus in here]
        self.sharing_group[at] = [[gpu.party.group for gpu in gpus] for gpus in here]
        self.clock += 1
        self.changed_at_clock[at] = self.clock

    def _kind_of(self, gpu: GPUState) -> int:
        """Returns the number of the kind, which is a model and a size. Kinds are never removed."""
        if gpu is _NO_GPU:
            return 0
        kind = (gpu.model, gpu.memory_total_bytes)
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)


def _empty(names: tuple[str, ...], columns: int) -> NodeArrays:
    rows = len(names)
    shape = (rows, columns)
    return NodeArrays(
        names=names,
        uuids=[() for _ in names],
        kinds=[],
        cpu_milli_free=np.zeros(rows, dtype=np.int64),
        memory_bytes_free=np.zeros(rows, dtype=np.int64),
        pods_free=np.zeros(rows, dtype=np.int64),
        eligible=np.zeros(rows, dtype=np.bool_),
        spot=np.zeros(rows, dtype=np.bool_),
        price=np.full(rows, np.inf),
        risk=np.zeros(rows),
        kind=np.zeros(shape, dtype=np.int64),
        memory_total=np.zeros(shape, dtype=np.int64),
        memory_free=np.zeros(shape, dtype=np.int64),
        utilization_used=np.zeros(shape),
        utilization_limit=np.zeros(shape),
        idle=np.zeros(shape, dtype=np.bool_),
        held_whole=np.zeros(shape, dtype=np.bool_),
        usable=np.zeros(shape, dtype=np.bool_),
        link_group=np.zeros(shape, dtype=np.int64),
        namespace=np.zeros(shape, dtype=np.int64),
        sharing_group=np.zeros(shape, dtype=np.int64),
        changed_at_clock=np.zeros(rows, dtype=np.int64),
    )
