"""The capacity of one cycle, including the placements that it assumes, in two forms.

`Capacity` holds it as objects, for explanations. `NodeArrays` holds the same as arrays, in which
`select.choose` finds the best place among thousands. Every placement of the cycle is applied to
both.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from gpujob_api.gpujob import GPUJob, Reservation
from gpujob_operator.decide.capacity.cluster import (
    Capacity,
    GPUCapacity,
    NodeCapacity,
    Tenant,
    has_external_use,
    with_reservation,
)
from gpujob_operator.decide.model.gang_spread import SpreadRule
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME, NodeView
from gpujob_operator.decide.packing import select
from gpujob_operator.decide.packing.arrays import Integers
from gpujob_operator.decide.packing.demand import WorkloadMix
from gpujob_operator.decide.packing.request import NodeMask, Request, Score
from gpujob_operator.decide.placement.finding import NO_GPUS
from gpujob_operator.decide.placement.memo import Forgetful, Memo
from gpujob_operator.decide.placement.node_views import (
    DerivedView,
    NodeViews,
    PackedNodes,
    in_order,
)


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A node and its GPUs for one worker."""

    node: str
    gpus: tuple[GPUCapacity, ...]


@dataclass(slots=True)
class AssumedCapacity:
    # Copied nodes, which change as places are assumed.
    capacity: Capacity
    mix: WorkloadMix
    nominated: frozenset[Place] = frozenset()
    # No job with a known start can start on its nominated GPUs before this time. Jobs that end
    # earlier may use these GPUs. Infinity if there are no such GPUs.
    nominated_from_seconds: float = inf
    # The nominated GPUs by node. Replaced, never changed in place.
    nominated_on: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    # Equivalence classes that fit nowhere. Capacity only shrinks, so this holds for the cycle.
    unfit_classes: dict[Hashable, object] = field(default_factory=dict[Hashable, object])
    # Row numbers by node.
    _rows: dict[str, int] = field(default_factory=dict[str, int])
    _views: NodeViews = field(default_factory=lambda: NodeViews.of([]))
    # The view for jobs that never share: without GPUs that have unmanaged processes.
    _no_external_use: PackedNodes | None = None
    # The view for jobs that end before any nominated job starts: with nominated GPUs open.
    _backfill: PackedNodes | None = None
    # The view for jobs of both kinds.
    _exclusive_backfill: PackedNodes | None = None
    memo: Memo = field(default_factory=Forgetful)
    # Names of nodes on which nothing is placed now.
    left_out: frozenset[str] = frozenset()
    _nodes: dict[str, NodeCapacity] = field(default_factory=dict[str, NodeCapacity])

    @classmethod
    def of(
        cls,
        capacity: Capacity,
        mix: WorkloadMix | None = None,
        views: NodeViews | None = None,
        memo: Memo | None = None,
    ) -> "AssumedCapacity":
        """Returns the assumed capacity.

        `views` must match the nodes of `capacity`, and `memo` must belong to them. Each is created
        if it is None.
        """
        views = views if views is not None else NodeViews.of(in_order(capacity))
        rows = {name: row for row, name in enumerate(views.main.arrays.names)}
        nodes = dict(capacity.nodes)
        return cls(
            replace(capacity, nodes=nodes),
            mix or WorkloadMix(),
            _rows=rows,
            _views=views,
            memo=memo if memo is not None else Forgetful(),
            _nodes=nodes,
        )

    def choose(
        self, request: Request, *, no_external_use: bool = False, backfill: bool = False
    ) -> WorkerPlace | None:
        """Returns the best place for one worker, or None.

        `no_external_use` avoids GPUs with unmanaged processes. `backfill` may use nominated GPUs.
        """
        packed = self._packed(no_external_use=no_external_use, backfill=backfill)
        choice = select.choose(packed.arrays, request, self.mix, packed.score_cache)
        if choice is None:
            return None
        return self._place(packed, choice.row, choice.gpus)

    def _packed(self, *, no_external_use: bool, backfill: bool) -> PackedNodes:
        if no_external_use:
            return self._without_external_use(backfill=backfill)
        return self._backfill if backfill and self._backfill is not None else self._views.main

    def _place(self, packed: PackedNodes, row: int, columns: Iterable[int]) -> WorkerPlace:
        node = self.capacity.nodes[packed.arrays.names[row]]
        uuids = {packed.arrays.uuids[row][column] for column in columns}
        return WorkerPlace(node.node.name, tuple(gpu for gpu in node.gpus if gpu.uuid in uuids))

    def choose_gang(
        self,
        request: Request,
        workers: int,
        topology_labels: Sequence[str],
        spread: Sequence[SpreadRule] = (),
        *,
        no_external_use: bool = False,
        backfill: bool = False,
    ) -> list[WorkerPlace]:
        """Returns places close together, each on its own GPUs, for as many workers as fit.

        The places are as far apart as the rules in `spread` require.
        """
        packed = self._packed(no_external_use=no_external_use, backfill=backfill)
        levels = self._levels(tuple(topology_labels))
        found = select.choose_gang(
            packed.arrays,
            request,
            workers,
            packed.score_cache,
            self.mix,
            levels,
            [self._limit(rule, request.nodes) for rule in spread],
        )
        return [self._place(packed, row, columns) for row, columns in found]

    def _limit(self, rule: SpreadRule, nodes: NodeMask | None) -> select.SpreadLimit:
        """Returns the rule by row. Nodes that the job may not use are in no domain."""
        if rule.topology_key == LABEL_HOSTNAME:
            domains = np.arange(len(self._rows))
        else:
            (domains,) = self._levels((rule.topology_key,))
        if nodes is not None:
            domains = np.where(nodes.allowed, domains, -1)
        return select.SpreadLimit(domains, rule.most, rule.skew)

    def _levels(self, labels: tuple[str, ...]) -> list[Integers]:
        """Returns the domain of each row's node, with the closest level first.

        A node without one of the labels is in no domain of that level and of the levels within it.
        """

        def find() -> list[Integers]:
            nodes = [self.capacity.nodes[name].node for name in self._rows]
            return [
                _domains([[node.labels.get(label) for label in labels[:depth]] for node in nodes])
                for depth in range(len(labels), 0, -1)
            ]

        return self.memo.once(("levels", self._views.order, labels), find)

    def assume(self, place: WorkerPlace, request: Request, tenant: Tenant) -> None:
        """Assigns a place to a worker for the rest of the cycle."""
        row = self._rows[place.node]
        columns = self._columns(place.node, {gpu.uuid for gpu in place.gpus})
        amount = replace(
            request.allocation,
            gpu_memory_bytes=tenant.memory_bytes,
            whole_gpu=tenant.whole_gpu,
            utilization_limit_percent=request.utilization_limit_percent,
        )
        for packed in self._all_packed():
            packed.arrays.place(row, columns, amount)
        self._nodes[place.node] = _with_tenant(self._nodes[place.node], place, request, tenant)

    def grow(self, before: GPUJob, reservation: Reservation) -> None:
        """Counts the larger reservation that a job gets in this cycle on its present GPUs."""
        placement = before.status.placement
        for worker in placement.workers if placement is not None else ():
            node = self._nodes.get(worker.node)
            if node is None:
                continue
            gpus = tuple(
                with_reservation(gpu, before.metadata.uid, reservation)
                if gpu.uuid in worker.gpus
                else gpu
                for gpu in node.gpus
            )
            for gpu, grown in zip(node.gpus, gpus, strict=True):
                columns = self._columns(worker.node, {gpu.uuid})
                memory_bytes = gpu.free_bytes - grown.free_bytes
                percent = grown.utilization_percent - gpu.utilization_percent
                for packed in self._all_packed() if grown is not gpu else ():
                    packed.arrays.grow(self._rows[worker.node], columns, memory_bytes, percent)
            self._nodes[worker.node] = replace(node, gpus=gpus)

    def with_assumed(
        self, places: Iterable[WorkerPlace], request: Request, tenant: Tenant
    ) -> Capacity:
        """Returns the capacity with these places assumed. This object is unchanged."""
        nodes = dict(self._nodes)
        for place in places:
            nodes[place.node] = _with_tenant(nodes[place.node], place, request, tenant)
        return replace(self.capacity, nodes=nodes)

    def nominate(self, gpus: Iterable[Place], not_before_seconds: float = 0.0) -> None:
        """Nominates GPUs for a job that cannot start there before `not_before_seconds`.

        No later job is placed there in this cycle, unless it is known to end by then. 0 means that
        the start is unknown, and then no job ends in time.
        """
        new = frozenset(gpus) - self.nominated
        if not new:
            return
        if self._backfill is None:
            self._backfill, _ = self._views.backfill.follow(self._views.main)
        self.nominated |= new
        closed = [self._views.main, self._no_external_use]
        if not_before_seconds > 0:
            self.nominated_from_seconds = min(self.nominated_from_seconds, not_before_seconds)
        else:
            closed += [self._backfill, self._exclusive_backfill]
        # Earlier refusals stay valid, because a nomination only removes capacity.
        on: dict[str, set[str]] = {}
        for node, uuid in new:
            if node in self._rows:
                on.setdefault(node, set()).add(uuid)
        before = self.nominated_on
        after = {name: before.get(name, NO_GPUS) | here for name, here in on.items()}
        self.nominated_on = {**before, **after}
        for name, here in on.items():
            for packed in closed:
                if packed is not None:
                    packed.arrays.close(self._rows[name], self._columns(name, here))

    def may_backfill(self, expected_run_seconds: float) -> bool:
        """Returns whether a job of this duration is known to end before any nominated
        job starts.
        """
        return expected_run_seconds <= self.nominated_from_seconds < inf

    def refuses_backfill(self, scheduling_signature: Hashable) -> bool:
        """Returns whether jobs of a class fit nowhere, even on nominated GPUs."""
        return (scheduling_signature, True) in self.unfit_classes

    def mask(self, key: Hashable, allows: Callable[[NodeView], bool]) -> NodeMask | None:
        """Returns the allowed nodes, or None if all are allowed.

        `key` identifies `allows`, which may read only `constraint_fields`.
        """

        left_out, nodes = self.left_out, self.capacity.nodes

        def find() -> NodeMask | None:
            mask = [name not in left_out and allows(nodes[name].node) for name in self._rows]
            allowed = np.array(mask, dtype=np.bool_)
            return None if allowed.all() else NodeMask((key, left_out), allowed)

        return self.memo.once(("mask", self._views.order, key, left_out), find)

    def score(self, place: WorkerPlace, request: Request, *, no_external_use: bool) -> Score | None:
        """Returns the score of a place as `choose` compares it, or None if the place
        is not free.
        """
        packed = self._packed(no_external_use=no_external_use, backfill=False)
        row = self._rows[place.node]
        only = NodeMask(("only", row), np.arange(len(self._rows)) == row)
        request = replace(request, nodes=only)
        choice = select.choose(packed.arrays, request, self.mix, packed.score_cache)
        return choice.score if choice is not None else None

    def _all_packed(self) -> tuple[PackedNodes, ...]:
        derived = (self._no_external_use, self._backfill, self._exclusive_backfill)
        return (self._views.main, *(one for one in derived if one is not None))

    def _without_external_use(self, *, backfill: bool) -> PackedNodes:
        if backfill and self._backfill is not None:
            if self._exclusive_backfill is None:
                view = self._views.exclusive_backfill
                self._exclusive_backfill = self._closed_where_used(view, self._backfill)
            return self._exclusive_backfill
        if self._no_external_use is None:
            view = self._views.no_external_use
            self._no_external_use = self._closed_where_used(view, self._views.main)
        return self._no_external_use

    def _closed_where_used(self, view: DerivedView, of: PackedNodes) -> PackedNodes:
        packed, rows = view.follow(of)
        for row in rows:
            node = self.capacity.nodes[of.arrays.names[row]]
            used = {gpu.uuid for gpu in node.gpus if has_external_use(gpu)}
            if used:
                packed.arrays.close(row, self._columns(node.node.name, used))
        view.settle()
        return packed

    def _columns(self, node: str, uuids: Set[str]) -> list[int]:
        row = self._views.main.arrays.uuids[self._rows[node]]
        return [column for column, uuid in enumerate(row) if uuid in uuids]


def _domains(values: list[list[str | None]]) -> Integers:
    """Returns a number for each combination of values, in sorted order. -1 if a value
    is missing.
    """
    known = sorted({tuple(str(v) for v in one) for one in values if None not in one})
    numbers = {one: number for number, one in enumerate(known)}
    return np.array(
        [-1 if None in one else numbers[tuple(str(v) for v in one)] for one in values],
        dtype=np.int64,
    )


def _with_tenant(
    node: NodeCapacity, place: WorkerPlace, request: Request, tenant: Tenant
) -> NodeCapacity:
    taken = {gpu.uuid for gpu in place.gpus}
    gpus = tuple(
        replace(gpu, tenants=(*gpu.tenants, tenant)) if gpu.uuid in taken else gpu
        for gpu in node.gpus
    )
    return replace(
        node,
        gpus=gpus,
        cpu_milli_free=node.cpu_milli_free - request.demand.cpu_milli,
        memory_bytes_free=node.memory_bytes_free - request.demand.memory_bytes,
        pods_free=node.pods_free - 1,
    )
