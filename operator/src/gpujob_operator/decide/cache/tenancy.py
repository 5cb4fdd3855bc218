"""Which tenants leave each GPU, and when: all GPUs of the cluster as arrays with a row each.

There is a column for each tenant of the fullest GPU. The arrays are kept from cycle to cycle. Rows
are filled again if the node is a new object. Moments are read from `release_arrays` every time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, compress, count
from operator import is_not

import numpy as np

from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import (
    SLOWDOWN_PERCENT_MAX,
    RemainingTenancy,
    Tenancy,
    common_left,
    least_left,
    sums_left,
)
from gpujob_operator.decide.cache.release_arrays import ReleaseArrays
from gpujob_operator.decide.capacity.cluster import (
    Capacity,
    HostUse,
    NodeCapacity,
    has_external_use,
)
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers


@dataclass(slots=True)
class TenancyArrays:
    """The tenancy of the cluster, renewed row by row."""

    _tenancy: Tenancy = field(init=False)
    # The first row of each node, with one more entry at the end.
    _first_row: list[int] = field(init=False)
    # A column per tenant, with its job's number in `ReleaseArrays`. 0: no tenant.
    _number: Integers = field(init=False)
    _memory: Integers = field(init=False)
    _utilization: Floats = field(init=False)
    _slowdown: Integers = field(init=False)
    _whole: Booleans = field(init=False)
    # Negative if there is no tenant.
    _namespace: Integers = field(init=False)
    _group: Integers = field(init=False)
    # The moments from which `stay` was made, and rows that were filled since.
    _moments: Floats = field(init=False)
    _filled: set[int] = field(default_factory=set[int])
    _numbers: object = None
    _version: int = -1
    _builds: int = 0

    def __post_init__(self) -> None:
        self._build([], ReleaseArrays(ReleaseTimes()))

    def renew(self, capacity: Capacity, ends: ReleaseArrays) -> Tenancy:
        """Brings everything up to date.

        Lists that were returned earlier stay unchanged. Arrays do not.
        """
        nodes = list(capacity.nodes.values())
        changed = self._changed(nodes)
        if changed is None or self._numbers is not ends.numbers:
            self._build(nodes, ends)
        elif changed:
            self._renew_rows(changed, nodes, ends)
        if self._filled or self._version != ends.version:
            self._renew_stay(ends.released_at_all(self._number))
            self._version = ends.version
        return self._tenancy

    def _renew_rows(
        self, changed: list[int], nodes: list[NodeCapacity], ends: ReleaseArrays
    ) -> None:
        rows = self._tenancy
        rows.gpus, rows.tenants, rows.nodes = list(rows.gpus), list(rows.tenants), nodes
        for number in changed:
            node = nodes[number]
            rows.open_nodes[number] = not node.closed
            rows.host_free[number], rows.host_without_jobs[number] = _host(node)
        self._fill(changed, nodes, ends)

    def _changed(self, nodes: list[NodeCapacity]) -> list[int] | None:
        """Returns the nodes that are new objects, or None if the rows do not fit them."""
        if len(nodes) != len(self._tenancy.nodes):
            return None
        changed: list[int] = []
        columns = self._memory.shape[1]
        for number in compress(count(), map(is_not, self._tenancy.nodes, nodes)):
            before, node = self._tenancy.nodes[number], nodes[number]
            if [gpu.uuid for gpu in before.gpus] != [gpu.uuid for gpu in node.gpus]:
                return None
            if any(len(gpu.tenants) > columns for gpu in node.gpus):
                return None
            changed.append(number)
        return changed

    def _build(self, nodes: list[NodeCapacity], ends: ReleaseArrays) -> None:
        gpus = [gpu for node in nodes for gpu in node.gpus]
        size = len(gpus)
        columns = max((len(gpu.tenants) for gpu in gpus), default=0)
        counts = np.array([len(node.gpus) for node in nodes], dtype=np.int64)
        self._first_row = [0, *np.cumsum(counts).tolist()]
        self._memory, self._slowdown, self._number = np.zeros((3, size, columns), np.int64)
        self._utilization = np.zeros((size, columns))
        self._whole = np.zeros((size, columns), np.bool_)
        self._namespace, self._group = np.full((2, size, columns), -1, np.int64)
        self._moments = np.zeros((size, columns))
        self._numbers = ends.numbers
        ranks = {uuid: rank for rank, uuid in enumerate(sorted(gpu.uuid for gpu in gpus))}
        free_bytes, usable_after_release_bytes = np.zeros((2, size), np.int64)
        usable, external_use, awaiting_reading = np.zeros((3, size), np.bool_)
        host = np.array([_host(node) for node in nodes], dtype=np.int64).reshape(-1, 2, 3)
        self._builds += 1
        self._tenancy = Tenancy(
            nodes=nodes,
            order_version=self._builds,
            open_nodes=np.array([not node.closed for node in nodes], dtype=np.bool_),
            host_free=host[:, 0],
            host_without_jobs=host[:, 1],
            gpus=gpus,
            tenants=[[]] * size,
            node_of=np.repeat(np.arange(len(nodes)), counts),
            rank=np.array([ranks[gpu.uuid] for gpu in gpus], dtype=np.int64),
            models=np.array([gpu.model for gpu in gpus], dtype=np.object_),
            free_bytes=free_bytes,
            usable_after_release_bytes=usable_after_release_bytes,
            usable=usable,
            has_external_use=external_use,
            awaiting_reading=awaiting_reading,
            count=np.zeros(size, np.int64),
            stay=self._staying(np.arange(size)),
        )
        self._fill(range(len(nodes)), nodes, ends)
        self._tenancy.stay = self._staying(np.arange(size))
        self._filled = set(range(size))

    def _fill(self, numbers: Iterable[int], nodes: list[NodeCapacity], ends: ReleaseArrays) -> None:
        """Fills column by column, because an assignment to an array costs as much for one row as
        for many.
        """
        tenancy, rows = self._tenancy, list[int]()
        for number in numbers:
            for row, gpu in enumerate(nodes[number].gpus, self._first_row[number]):
                if gpu is not tenancy.gpus[row] or not tenancy.tenants[row]:
                    tenancy.gpus[row] = gpu
                    tenancy.tenants[row] = sorted(gpu.tenants, key=lambda one: one.job_uid)
                    rows.append(row)
        if not rows:
            return
        self._filled.update(rows)
        at = np.array(rows, dtype=np.int64)
        gpus, here = [tenancy.gpus[row] for row in rows], [tenancy.tenants[row] for row in rows]
        tenancy.free_bytes[at] = [gpu.free_bytes for gpu in gpus]
        tenancy.usable_after_release_bytes[at] = [gpu.usable_after_release_bytes for gpu in gpus]
        tenancy.models[at] = [gpu.model for gpu in gpus]
        tenancy.usable[at] = [not gpu.blocked for gpu in gpus]
        tenancy.has_external_use[at] = [has_external_use(gpu, soon=True) for gpu in gpus]
        tenancy.awaiting_reading[at] = [gpu.terminating_bytes > 0 for gpu in gpus]
        tenancy.count[at] = counts = [len(tenants) for tenants in here]
        self._memory[at] = self._number[at] = 0
        self._utilization[at], self._whole[at] = 0.0, False
        self._slowdown[at] = SLOWDOWN_PERCENT_MAX
        self._namespace[at] = self._group[at] = -1
        tenants = list(chain.from_iterable(here))
        places = np.repeat(at, counts), _columns(counts)
        self._number[places] = [ends.number(one.job_uid) for one in tenants]
        self._memory[places] = [one.memory_bytes + one.excess_bytes for one in tenants]
        self._utilization[places] = [one.utilization_percent for one in tenants]
        self._slowdown[places] = [one.max_slowdown_percent for one in tenants]
        self._whole[places] = [one.whole_gpu for one in tenants]
        self._namespace[places] = [one.party.namespace for one in tenants]
        self._group[places] = [one.party.group for one in tenants]

    def _renew_stay(self, moments: Floats) -> None:
        """Renews only rows with a change."""
        other = (moments != self._moments).any(axis=1)
        other[list(self._filled)] = True
        self._moments, self._filled = moments, set()
        rows = np.flatnonzero(other)
        part = self._staying(rows)
        for column in fields(RemainingTenancy):
            getattr(self._tenancy.stay, column.name)[rows] = getattr(part, column.name)

    def _staying(self, rows: Integers) -> RemainingTenancy:
        """Returns what remains on these rows' GPUs as their tenants leave.

        A GPU with tenants A (5 GiB, ends at 30), B (2 GiB, ends at 10) and an empty column:

            order         [1, 0, 2]         B leaves first, then A
            memory_bytes  [7, 5, 0, 0]      GiB after the first 0, 1, 2, 3 have left
            since         [0, 10, 30, inf]  when the last of those is gone
        """
        moments = self._moments[rows]
        # The sort is stable. Tenants with an unknown end leave by UID, before empty columns.
        order = np.argsort(moments, axis=1, kind="stable")
        return RemainingTenancy(
            memory_bytes=sums_left(np.take_along_axis(self._memory[rows], order, 1)),
            utilization_percent=sums_left(np.take_along_axis(self._utilization[rows], order, 1)),
            slowdown_percent=least_left(np.take_along_axis(self._slowdown[rows], order, 1)),
            whole_gpu=sums_left(np.take_along_axis(self._whole[rows], order, 1)).astype(np.bool_),
            namespace=common_left(np.take_along_axis(self._namespace[rows], order, 1)),
            sharing_group=common_left(np.take_along_axis(self._group[rows], order, 1)),
            since=np.pad(np.take_along_axis(moments, order, 1), ((0, 0), (1, 0))),
            order=order,
        )


def _host(node: NodeCapacity) -> tuple[HostUse, HostUse]:
    """Returns what is free of the host, and what would be without the jobs' pods."""
    free = HostUse(node.cpu_milli_free, node.memory_bytes_free, node.pods_free)
    return free, node.without_jobs or free


def _columns(counts: Sequence[int]) -> list[int]:
    """Returns 0, 1, ... for each row in turn, as many as it has tenants."""
    return list(chain.from_iterable(map(range, counts)))
