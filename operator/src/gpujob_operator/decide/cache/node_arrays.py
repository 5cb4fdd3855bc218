"""Packing arrays of the nodes, and answers about them, kept from cycle to cycle.

Only rows whose node is a new object are renewed, and only such nodes are diagnosed again.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import compress, count
from operator import attrgetter, is_not
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache

from gpujob_operator.decide.capacity.cluster import GPUCapacity, NodeCapacity, sizes
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.states import GPUState, NodeState
from gpujob_operator.decide.placement.finding import (
    FARTHEST,
    NO_DIAGNOSIS,
    NO_GPUS,
    Nearest,
    NodeDiagnosis,
    UnfitReason,
)
from gpujob_operator.decide.placement.memo import Diagnose
from gpujob_operator.decide.placement.node_filter import constraint_fields
from gpujob_operator.decide.placement.node_views import (
    NodeViews,
    PackedNodes,
    gpu_state,
    node_state,
)

T = TypeVar("T")
ANSWERS_MAX = 4096
# Each entry has the findings on every node.
DIAGNOSES_MAX = 64

_NEAREST = attrgetter("nearest")
_NominatedOn = Mapping[str, frozenset[str]]


@dataclass(slots=True)
class DiagnosisCounts:
    """The reasons that exclude jobs of a class from the GPUs of one model: by node, and the sum,
    which follows each change.
    """

    counts: Counter[UnfitReason] = field(default_factory=Counter[UnfitReason])
    _nodes: list[NodeCapacity] = field(default_factory=list[NodeCapacity])
    _diagnoses: list[NodeDiagnosis] = field(default_factory=list[NodeDiagnosis])
    _nominated_on: _NominatedOn = field(default_factory=dict[str, frozenset[str]])

    def renew(
        self, nodes: Mapping[str, NodeCapacity], nominated_on: _NominatedOn, diagnose: Diagnose
    ) -> None:
        """Diagnoses the nodes again that are new objects or have other nominated GPUs."""
        ordered = list(nodes.values())
        for row in self._changed(ordered, nominated_on):
            node = ordered[row]
            before = self._diagnoses[row]
            found = diagnose(node, nominated_on.get(node.node.name, NO_GPUS))
            self._diagnoses[row] = found
            if found.counts != before.counts:
                self._count(before, -1)
                self._count(found, 1)
        self._nodes, self._nominated_on = ordered, nominated_on

    @property
    def nearest(self) -> Nearest:
        return min(map(_NEAREST, self._diagnoses), default=FARTHEST)

    def _changed(self, nodes: list[NodeCapacity], nominated_on: _NominatedOn) -> list[int]:
        before = self._nodes
        changed = list(compress(range(len(nodes)), map(is_not, before, nodes)))
        same = len(before) == len(nodes)
        if not same or any(before[row].node.name != nodes[row].node.name for row in changed):
            self._nodes, self._diagnoses = nodes, [NO_DIAGNOSIS] * len(nodes)
            self.counts.clear()
            return list(range(len(nodes)))
        before_on, names = self._nominated_on, nominated_on.keys() | self._nominated_on.keys()
        other = {name for name in names if nominated_on.get(name) != before_on.get(name)}
        if other:
            nominated = (row for row, node in enumerate(nodes) if node.node.name in other)
            changed = sorted({*changed, *nominated})
        return changed

    def _count(self, found: NodeDiagnosis, sign: int) -> None:
        for finding, gpus in found.counts.items():
            self.counts[finding] += sign * gpus
            if not self.counts[finding]:
                del self.counts[finding]


@dataclass(slots=True)
class NodeMemo:
    """The `Memo` of one operator. Call `forget` if a node's labels, taints or sizes changed."""

    _answers: LRUCache[Hashable, Any] = field(default_factory=lambda: LRUCache(ANSWERS_MAX))
    _diagnoses: LRUCache[Hashable, DiagnosisCounts] = field(
        default_factory=lambda: LRUCache(DIAGNOSES_MAX)
    )

    def forget(self) -> None:
        self._answers.clear()
        self._diagnoses.clear()

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        return _found(self._answers, key, find)

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        """Diagnoses only nodes that are new objects."""
        diagnosed = _found(self._diagnoses, key, DiagnosisCounts)
        diagnosed.renew(nodes, nominated_on, diagnose)
        return diagnosed.counts, diagnosed.nearest


def _found(answers: LRUCache[Hashable, T], key: Hashable, find: Callable[[], T]) -> T:
    """Returns the cached answer, or else the result of `find`."""
    try:
        return answers[key]
    except KeyError:
        answer = answers[key] = find()
        return answer


@dataclass(slots=True)
class NodeArrayCache:
    """The arrays of the last cycle, reused for nodes that are the same objects."""

    # What depends on labels, taints and sizes alone.
    memo: NodeMemo = field(default_factory=NodeMemo)
    _views: NodeViews = field(default_factory=lambda: NodeViews.of([]))
    _nodes: list[NodeCapacity] = field(default_factory=list[NodeCapacity])
    # The arrays' clock when they last matched the nodes. Later changes were only planned.
    _clock: int = 0
    # The rows' GPUs by UUID, with the capacity's objects from which they were made.
    _states: dict[str, tuple[GPUCapacity, GPUState]] = field(
        default_factory=dict[str, tuple[GPUCapacity, GPUState]]
    )

    def renew(self, ordered: list[NodeCapacity]) -> NodeViews:
        """Returns views that match these nodes, in this order."""
        if not self._is_renewed(ordered):
            self._states.clear()
            self.memo.forget()
            self._views.main = PackedNodes(
                NodeArrays.of([self._node_state(node) for node in ordered])
            )
            self._views.order += 1
        self._nodes, self._clock = ordered, self._views.main.arrays.clock
        return self._views

    def _is_renewed(self, ordered: list[NodeCapacity]) -> bool:
        """Brings the main view up to date. Returns False if it has to be built anew."""
        if not self._in_order(ordered):
            return False
        arrays = self._views.main.arrays
        columns = arrays.usable.shape[1]
        planned_on = np.flatnonzero(arrays.changed_at_clock > self._clock).tolist()
        others = compress(count(), map(is_not, self._nodes, ordered))
        rows = sorted({*planned_on, *others})
        for row in rows:
            before, node = self._nodes[row], ordered[row]
            if len(node.gpus) > columns:
                return False
            if before is not node and _lasting(before) != _lasting(node):
                self.memo.forget()
        arrays.renew_all(rows, [self._node_state(ordered[row]) for row in rows])
        return arrays.kinds == arrays.kinds_in_order()

    def _node_state(self, node: NodeCapacity) -> NodeState:
        return node_state(node, self._gpu_state)

    def _gpu_state(self, gpu: GPUCapacity) -> GPUState:
        known = self._states.get(gpu.uuid)
        if known is None or known[0] is not gpu:
            known = self._states[gpu.uuid] = gpu, gpu_state(gpu)
        return known[1]

    def _in_order(self, ordered: list[NodeCapacity]) -> bool:
        """Brings the kept rows into this order. Returns False if they are not the same nodes."""
        main = self._views.main
        names = tuple(node.node.name for node in ordered)
        if names == main.arrays.names:
            return True
        rows = {name: row for row, name in enumerate(main.arrays.names)}
        if rows.keys() != set(names):
            return False
        order = np.array([rows[name] for name in names], dtype=np.int64)
        self._views.main = PackedNodes(
            main.arrays.reordered(order), main.score_cache.reordered(order)
        )
        self._views.order += 1
        self._nodes = [self._nodes[row] for row in order.tolist()]
        return True


def _lasting(node: NodeCapacity) -> tuple[object, ...]:
    """Returns what decides whether a request could ever be on the node: constraint fields and
    sizes.
    """
    view = node.node
    allocatable = view.cpu_milli_allocatable, view.memory_bytes_allocatable, view.pods_allocatable
    return constraint_fields(view), allocatable, sizes(node)
