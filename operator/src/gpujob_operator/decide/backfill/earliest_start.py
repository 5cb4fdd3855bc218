"""Finds where the workers of a pending job could start, earliest first.

For every GPU it computes how many of its tenants must leave, and when the last of them is expected
to leave (`release_times`). All GPUs of the cluster are computed at once, on arrays (`tenancy`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.backfill.tenancy import SLOWDOWN_PERCENT_MAX, Tenancy
from gpujob_operator.decide.capacity.cluster import (
    Capacity,
    GPUCapacity,
    NodeCapacity,
    Tenant,
)
from gpujob_operator.decide.capacity.slowdown_law import Law, summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers
from gpujob_operator.decide.placement.memo import Memo
from gpujob_operator.decide.placement.node_filter import why_not_on
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest, resolve

# Earlier than any time. The GPU is ready, or will be after its next reading.
_READY, _UNREAD = 0.0, 1.0


class ReadyTime(NamedTuple):
    """When a GPU is ready, as a sort key.

    It has the Unix time in seconds, the number of tenants that must leave first, the negated free
    memory, and the UUID.
    """

    at: float
    leaving: int
    lacking_bytes: int
    uuid: str


class CandidateGpus(NamedTuple):
    """GPUs of one node for one worker.

    It has when the last of them is ready, and which jobs must leave until then.
    """

    soon: ReadyTime
    node: str
    uuids: tuple[str, ...]
    gpus: tuple[GPUCapacity, ...]
    tenants: tuple[Tenant, ...]
    # The other GPUs of a node whose CPU, memory or pods do not suffice before its tenants have
    # left. A new tenant there would take what they free.
    beside: tuple[str, ...] = ()

    @property
    def held(self) -> list[Place]:
        """The GPUs on which no other job may start before."""
        return [(self.node, uuid) for uuid in (*self.uuids, *self.beside)]

    @property
    def places(self) -> list[Place]:
        return [(self.node, uuid) for uuid in self.uuids]

    @property
    def awaiting_reading(self) -> bool:
        """True while the last reading still shows memory of pods that have ended."""
        return any(gpu.terminating_bytes for gpu in self.gpus)


@dataclass(slots=True)
class Candidates:
    """Candidates in order of readiness. Details are computed only for those that are read."""

    # Rows of each candidate's GPUs. The last one to be ready is at the end.
    _rows: Integers
    _gpus: list[GPUCapacity]
    _tenants: list[list[Tenant]]
    _nodes: list[NodeCapacity]
    # By row.
    _node_of: Integers
    _at: Floats
    _count: Integers
    _order: Integers
    # By row: whether its node lacks CPU, memory or pods for this worker or one more.
    _short: Booleans
    _seen: list[CandidateGpus] = field(default_factory=list[CandidateGpus])

    def __iter__(self) -> Iterator[CandidateGpus]:
        for number in range(len(self._rows)):
            if number == len(self._seen):
                self._seen.append(self._candidate(self._rows[number].tolist()))
            yield self._seen[number]

    def _candidate(self, rows: list[int]) -> CandidateGpus:
        gpus = tuple(self._gpus[row] for row in rows)
        tenants: list[Tenant] = []
        for row in rows:
            first = self._order[row, : self._count[row]].tolist()
            tenants += [self._tenants[row][column] for column in first]
        last, gpu = rows[-1], gpus[-1]
        soon = ReadyTime(float(self._at[last]), int(self._count[last]), -gpu.free_bytes, gpu.uuid)
        number = self._node_of[last]
        node, uuids = self._nodes[number], tuple(gpu.uuid for gpu in gpus)
        others = node.gpus if self._short[last] else ()
        beside = tuple(gpu.uuid for gpu in others if gpu.uuid not in uuids)
        return CandidateGpus(soon, node.node.name, uuids, gpus, tuple(tenants), beside)


def candidates(
    requirements: JobRequirements,
    tenancy: Tenancy,
    capacity: Capacity,
    memo: Memo,
    configuration: Configuration,
) -> tuple[Candidates, ...]:
    """Returns candidates on every model that the job accepts.

    `tenancy` must be that of `capacity`, and `memo` must belong to the same nodes.
    """
    found: list[Candidates] = []
    for model in requirements.models(capacity):
        request = resolve(requirements, model, capacity, configuration)
        fits = _ever_fits(request, tenancy, memo)
        count, can = _departures_needed(request, tenancy, capacity.law(model))
        found.append(_in_order(requirements, count, fits & can, tenancy))
    return tuple(found)


def _ever_fits(request: WorkerRequest, tenancy: Tenancy, memo: Memo) -> Booleans:
    """Returns whether a worker would fit if no GPUJob ran there, for each GPU."""
    fits = tenancy.usable & (tenancy.models == request.model)
    fits &= tenancy.usable_after_release_bytes >= request.least_bytes
    if tenancy.nodes:
        nodes = tenancy.open_nodes & _allowed_nodes(request.requirements, tenancy, memo)
        nodes &= _workers_by_host(request.requirements, tenancy.host_without_jobs) > 0
        fits &= nodes[tenancy.node_of]
    if request.exclusive:
        fits &= ~tenancy.has_external_use
    return fits


def _workers_by_host(requirements: JobRequirements, there: Integers) -> Integers:
    """Returns for how many workers each node has CPU, memory and pods. `there` is as in
    `Tenancy`.
    """
    cpu_milli, memory_bytes, pods = there.T
    workers = pods
    if requirements.cpu_milli:
        workers = np.minimum(workers, cpu_milli // requirements.cpu_milli)
    if requirements.memory_bytes:
        workers = np.minimum(workers, memory_bytes // requirements.memory_bytes)
    return workers


def _all_left(tenancy: Tenancy) -> Floats:
    """Returns when all tenants of each node have left, by row."""
    left = np.take_along_axis(tenancy.stay.since, tenancy.count[:, None], 1)[:, 0]
    latest = np.zeros(len(tenancy.nodes))
    np.maximum.at(latest, tenancy.node_of, left)
    return latest[tenancy.node_of]


def _departures_needed(
    request: WorkerRequest, tenancy: Tenancy, law: Law
) -> tuple[Integers, Booleans]:
    """Returns how many tenants of each GPU must leave before a worker fits, and whether it ever
    fits.

    Tenants leave in the order of their release times.
    """
    wanted = request.wanted
    if wanted is None:
        # A copy, because rows are updated while candidates are still being read.
        return tenancy.count.copy(), np.ones(len(tenancy.gpus), dtype=np.bool_)
    stay = tenancy.stay
    usable_bytes = tenancy.usable_after_release_bytes[:, None] - wanted.memory_bytes
    limits = _limits_percent(request.max_slowdown_percent, law)
    total_percent = stay.utilization_percent + wanted.utilization_percent
    nobody = np.arange(stay.memory_bytes.shape[1]) >= tenancy.count[:, None]
    enough = (stay.memory_bytes <= usable_bytes) & ~stay.whole_gpu
    namespace, group = request.requirements.party
    joins = (stay.namespace == namespace) | (stay.sharing_group == group)
    enough &= nobody | ((total_percent <= limits[stay.slowdown_percent]) & joins)
    return enough.argmax(axis=1), enough.any(axis=1)


def _allowed_nodes(requirements: JobRequirements, tenancy: Tenancy, memo: Memo) -> Booleans:
    """Returns nodes whose labels and taints allow the job."""

    def find() -> Booleans:
        allowed = [not why_not_on(requirements, node.node) for node in tenancy.nodes]
        return np.array(allowed, dtype=np.bool_)

    return memo.once(("tenancy", tenancy.order_version, requirements.node_constraints), find)


def _in_order(
    requirements: JobRequirements, count: Integers, fits: Booleans, tenancy: Tenancy
) -> Candidates:
    """Returns the candidates on GPUs that fit once `count` tenants have left.

    A node without enough CPU, memory or pods for a worker has them at the latest when all of its
    tenants have left. A node has no more candidates than workers that its host can take.
    """
    size = requirements.job.spec.gpus_per_worker
    ready = np.where(tenancy.awaiting_reading, _UNREAD, _READY)
    since = np.take_along_axis(tenancy.stay.since, count[:, None], 1)[:, 0]
    at = np.maximum(ready, since)
    now = _workers_by_host(requirements, tenancy.host_free)
    short = (now < 1)[tenancy.node_of]
    if short.any():
        at = np.where(short, np.maximum(at, _all_left(tenancy)), at)
    found = np.flatnonzero(fits)
    keys = tenancy.rank, -tenancy.free_bytes, count, at
    if size > 1:
        found = found[np.lexsort((*(key[found] for key in keys), tenancy.node_of[found]))]
        found = _groups(size, found, tenancy.node_of)
    else:
        found = found[:, None]
    last = found[:, -1]
    found = found[np.lexsort([key[last] for key in keys])]
    if requirements.job.spec.workers > 1:
        most = _workers_by_host(requirements, tenancy.host_without_jobs)
        found = found[_among_first(tenancy.node_of[found[:, -1]], most)]
        last = found[:, -1]
        late = last[~_among_first(tenancy.node_of[last], now)]
        if len(late):
            at[late] = np.maximum(at[late], _all_left(tenancy)[late])
            # The others wait for them, and a new tenant would take the CPU of the last that fits.
            short[last[~_among_first(tenancy.node_of[last], now - 1)]] = True
            found = found[np.lexsort([key[last] for key in keys])]
    # A copy of the order, because it is updated while candidates are still being read.
    return Candidates(
        found,
        tenancy.gpus,
        tenancy.tenants,
        tenancy.nodes,
        tenancy.node_of,
        at,
        count,
        tenancy.stay.order.copy(),
        short,
    )


def _among_first(nodes: Integers, most: Integers) -> Booleans:
    """Returns which candidates, on these nodes, are among the first `most` of their node."""
    order = np.argsort(nodes, kind="stable")
    ordered = nodes[order]
    position = np.arange(len(nodes)) - np.searchsorted(ordered, ordered)
    found = np.zeros(len(nodes), dtype=np.bool_)
    found[order] = position < most[ordered]
    return found


def _groups(size: int, rows: Integers, node_of: Integers) -> Integers:
    """Groups the rows of each node into workers, with the GPUs that are ready first together.

    Rows must be in node order.
    """
    nodes = node_of[rows]
    first = np.searchsorted(nodes, nodes)
    position = np.arange(len(rows)) - first
    last = np.flatnonzero(position % size == size - 1)
    return rows[last[:, None] + np.arange(1 - size, 1)]


def _limits_percent(slowdown_percent: int, law: Law) -> NDArray[np.float64]:
    """Returns the summed utilization up to which the job may share a GPU with others.

    The others allow 0, 1, ... percent of slowdown.
    """
    return np.array(
        [
            summed_utilization_limit_percent(min(others, slowdown_percent), law)
            for others in range(SLOWDOWN_PERCENT_MAX + 1)
        ]
    )
