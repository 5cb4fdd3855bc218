"""Packing arrays of the nodes, kept from cycle to cycle and renewed row by row where a node is
another object."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import compress, count
from operator import is_not

import numpy as np

from gpujob_operator.decide.cache.diagnosis_counts import Survey
from gpujob_operator.decide.capacity.cluster import Card, NodeCapacity, sizes
from gpujob_operator.decide.packing.arrays import CardState, Fleet, Integers, NodeState
from gpujob_operator.decide.packing.request import NodeMask
from gpujob_operator.decide.placement.node_filter import node_marks
from gpujob_operator.decide.placement.node_views import Follower, Side, card_order, card_state


@dataclass(slots=True)
class Kept:
    """The arrays of the last cycle's board, taken up again where nodes are the same objects."""

    side: Side | None = None
    # Without cards on which strangers are, and with claimed cards open; see `Board`.
    clean: Follower = field(default_factory=Follower)
    filler: Follower = field(default_factory=Follower)
    nodes: list[NodeCapacity] = field(default_factory=list[NodeCapacity])
    # The fleet's clock when it was last true to `nodes`; what changed later was only planned.
    clock: int = 0
    # The rows' cards as they were made from the ledger's, by UUID.
    states: dict[str, tuple[Card, CardState]] = field(
        default_factory=dict[str, tuple[Card, CardState]]
    )
    # What can ever fit, while nodes and cards are of the same size and marks.
    facts: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    # What keeps jobs of a kind off the cards, by kind and model; see `placement.diagnosis`.
    surveys: dict[Hashable, Survey] = field(default_factory=dict[Hashable, Survey])
    # Which rows a request may use, by what it asks of nodes; None: all.
    masks: dict[Hashable, NodeMask | None] = field(default_factory=dict[Hashable, NodeMask | None])
    # The domain of each row, by the labels that say so.
    levels: dict[tuple[str, ...], list[Integers]] = field(
        default_factory=dict[tuple[str, ...], list[Integers]]
    )

    def renew(self, ordered: list[NodeCapacity]) -> Side:
        """The side that is true to these nodes, in this order."""
        side = self._renewed(ordered)
        if side is None:
            self.states.clear()
            side = Side(Fleet.of([self._node_state(node) for node in ordered]))
            self._forget()
        self.side, self.nodes, self.clock = side, ordered, side.fleet.clock
        return side

    def _forget(self) -> None:
        self.masks.clear()
        self.levels.clear()
        self.facts.clear()
        self.surveys.clear()

    def _renewed(self, ordered: list[NodeCapacity]) -> Side | None:
        """The kept side brought up to date; None where it has to be built anew."""
        if self.side is None or not self._in_order(ordered):
            return None
        fleet = self.side.fleet
        columns = fleet.usable.shape[1]
        planned_on = np.flatnonzero(fleet.changed > self.clock).tolist()
        others = compress(count(), map(is_not, self.nodes, ordered))
        rows = sorted({*planned_on, *others})
        for row in rows:
            before, node = self.nodes[row], ordered[row]
            if len(node.cards) > columns:
                return None
            if before is not node and _lasting(before) != _lasting(node):
                self._forget()
        fleet.renew_all(rows, [self._node_state(ordered[row]) for row in rows])
        return self.side if fleet.kinds == fleet.kinds_in_order() else None

    def _node_state(self, node: NodeCapacity) -> NodeState:
        return NodeState(
            name=node.node.name,
            cpu_milli_free=node.cpu_milli_free,
            memory_bytes_free=node.memory_bytes_free,
            cards=tuple(self._card_state(card) for card in sorted(node.cards, key=card_order)),
            spot=node.node.spot,
            price_per_gpu_hour=node.price_with_losses,
            eligible=not node.closed,
            interruptions_per_hour=node.interruptions_per_hour,
        )

    def _card_state(self, card: Card) -> CardState:
        known = self.states.get(card.uuid)
        if known is None or known[0] is not card:
            known = self.states[card.uuid] = card, card_state(card)
        return known[1]

    def _in_order(self, ordered: list[NodeCapacity]) -> bool:
        """Brings the kept rows into this order, if they are the same nodes."""
        assert self.side is not None, "asked only of a side that is kept"
        names = tuple(node.node.name for node in ordered)
        if names == self.side.fleet.names:
            return True
        rows = {name: row for row, name in enumerate(self.side.fleet.names)}
        if rows.keys() != set(names):
            return False
        order = np.array([rows[name] for name in names], dtype=np.int64)
        self.side = Side(self.side.fleet.reordered(order), self.side.ledger.reordered(order))
        self.nodes = [self.nodes[row] for row in order.tolist()]
        self.masks.clear()
        self.levels.clear()
        return True


def _lasting(node: NodeCapacity) -> tuple[object, ...]:
    """What tells whether a request could ever be on the node: marks and sizes."""
    view = node.node
    allocatable = view.cpu_milli_allocatable, view.memory_bytes_allocatable
    return node_marks(view), allocatable, sizes(node)
