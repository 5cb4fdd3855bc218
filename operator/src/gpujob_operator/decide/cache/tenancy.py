"""Who leaves each card, and when: all cards of the cluster as arrays, a row each.

A column for each tenant of the fullest card. Kept from cycle to cycle: rows are filled anew where
the node is not the same object, moments are asked of `releases` every time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, compress, count
from operator import is_not

import numpy as np
from numpy.typing import NDArray

from gpujob_operator.decide.backfill.release_times import Releases
from gpujob_operator.decide.backfill.tenancy import (
    SLOWDOWN_PERCENT_MAX,
    Stay,
    least_left,
    sums_left,
)
from gpujob_operator.decide.capacity.cluster import Capacity, Card, NodeCapacity, Tenant, disturbed
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers
from gpujob_operator.decide.placement.node_filter import node_marks


@dataclass(slots=True)
class Rows:
    """Rows are cards in the order of nodes and of the cards on them."""

    nodes: list[NodeCapacity] = field(init=False)
    cards: list[Card] = field(init=False)
    # Of each card, by UID.
    tenants: list[list[Tenant]] = field(init=False)
    # Of each node; one more at the end.
    first_row: list[int] = field(init=False)
    open_nodes: Booleans = field(init=False)
    # Moves on when a node's marks change: labels, taints, spot.
    marks_version: int = 0
    node_of: Integers = field(init=False)
    # The place of each card's UUID among all.
    rank: Integers = field(init=False)
    free_bytes: Integers = field(init=False)
    room_soon_bytes: Integers = field(init=False)
    usable: Booleans = field(init=False)
    disturbed: Booleans = field(init=False)
    unread: Booleans = field(init=False)
    models: NDArray[np.object_] = field(init=False)
    count: Integers = field(init=False)
    # Whose end it is, as `releases` numbers jobs; 0 beyond the last tenant.
    _number: Integers = field(init=False)
    _memory: Integers = field(init=False)
    _utilization: Floats = field(init=False)
    _slowdown: Integers = field(init=False)
    _whole: Booleans = field(init=False)
    _stay: Stay = field(init=False)
    # What it was made from, and rows that were filled since.
    _moments: Floats = field(init=False)
    _filled: set[int] = field(default_factory=set[int])
    _numbers: object = None
    _version: int = -1

    def __post_init__(self) -> None:
        self._build([], Releases())

    def renew(self, capacity: Capacity, releases: Releases) -> Stay:
        """Makes all of it true. Lists that were handed out before stay as they were, arrays do
        not."""
        nodes = list(capacity.nodes.values())
        changed = self._changed(nodes)
        if changed is None or self._numbers is not releases.numbers:
            self._build(nodes, releases)
        elif changed:
            self.cards, self.tenants = list(self.cards), list(self.tenants)
            for number in changed:
                self._mark(number, nodes[number])
            self._fill(changed, nodes, releases)
            self.nodes = nodes
        if self._filled or self._version != releases.version:
            self._renew_stay(releases.moments(self._number))
            self._version = releases.version
        return self._stay

    def _changed(self, nodes: list[NodeCapacity]) -> list[int] | None:
        """Nodes that are not the same objects; None: the rows do not fit them."""
        if len(nodes) != len(self.nodes):
            return None
        changed: list[int] = []
        columns = self._memory.shape[1]
        for number in compress(count(), map(is_not, self.nodes, nodes)):
            before, node = self.nodes[number], nodes[number]
            if [card.uuid for card in before.cards] != [card.uuid for card in node.cards]:
                return None
            if any(len(card.tenants) > columns for card in node.cards):
                return None
            changed.append(number)
        return changed

    def _build(self, nodes: list[NodeCapacity], releases: Releases) -> None:
        cards = [card for node in nodes for card in node.cards]
        size = len(cards)
        columns = max((len(card.tenants) for card in cards), default=0)
        self.nodes, self.cards, self.tenants = nodes, cards, [[]] * size
        counts = np.array([len(node.cards) for node in nodes], dtype=np.int64)
        self.first_row = [0, *np.cumsum(counts).tolist()]
        self.open_nodes = np.array([not node.closed for node in nodes], dtype=np.bool_)
        self.marks_version += 1
        self.node_of = np.repeat(np.arange(len(nodes)), counts)
        ranks = {uuid: rank for rank, uuid in enumerate(sorted(card.uuid for card in cards))}
        self.rank = np.array([ranks[card.uuid] for card in cards], dtype=np.int64)
        self.free_bytes, self.room_soon_bytes = np.zeros((2, size), np.int64)
        self.usable, self.disturbed, self.unread = np.zeros((3, size), np.bool_)
        self.models = np.array([card.model for card in cards], dtype=np.object_)
        self.count = np.zeros(size, np.int64)
        self._memory, self._slowdown, self._number = np.zeros((3, size, columns), np.int64)
        self._numbers = releases.numbers
        self._utilization = np.zeros((size, columns))
        self._whole = np.zeros((size, columns), np.bool_)
        self._fill(range(len(nodes)), nodes, releases)
        self._moments = np.zeros((size, columns))
        self._stay = self._staying(np.arange(size))
        self._filled = set(range(size))

    def _mark(self, number: int, node: NodeCapacity) -> None:
        self.open_nodes[number] = not node.closed
        before, view = self.nodes[number].node, node.node
        if before is not view and node_marks(before) != node_marks(view):
            self.marks_version += 1

    def _fill(self, numbers: Iterable[int], nodes: list[NodeCapacity], releases: Releases) -> None:
        """Column by column: an assignment to an array costs as much for one row as for many."""
        rows: list[int] = []
        for number in numbers:
            for row, card in enumerate(nodes[number].cards, self.first_row[number]):
                if card is not self.cards[row] or not self.tenants[row]:
                    self.cards[row] = card
                    self.tenants[row] = sorted(card.tenants, key=lambda one: one.job_uid)
                    rows.append(row)
        if not rows:
            return
        self._filled.update(rows)
        at = np.array(rows, dtype=np.int64)
        cards, here = [self.cards[row] for row in rows], [self.tenants[row] for row in rows]
        self.free_bytes[at] = [card.free_bytes for card in cards]
        self.room_soon_bytes[at] = [card.room_soon_bytes for card in cards]
        self.models[at] = [card.model for card in cards]
        self.usable[at] = [not card.blocked for card in cards]
        self.disturbed[at] = [disturbed(card, soon=True) for card in cards]
        self.unread[at] = [card.leaving_bytes > 0 for card in cards]
        self.count[at] = counts = [len(tenants) for tenants in here]
        self._memory[at] = self._number[at] = 0
        self._utilization[at], self._whole[at] = 0.0, False
        self._slowdown[at] = SLOWDOWN_PERCENT_MAX
        tenants = list(chain.from_iterable(here))
        places = np.repeat(at, counts), _columns(counts)
        self._number[places] = [releases.number(one.job_uid) for one in tenants]
        self._memory[places] = [one.memory_bytes + one.excess_bytes for one in tenants]
        self._utilization[places] = [one.utilization_percent for one in tenants]
        self._slowdown[places] = [one.max_slowdown_percent for one in tenants]
        self._whole[places] = [one.whole_card for one in tenants]

    def _renew_stay(self, moments: Floats) -> None:
        """Only rows of which anything is not as it was."""
        other = (moments != self._moments).any(axis=1)
        other[list(self._filled)] = True
        self._moments, self._filled = moments, set()
        rows = np.flatnonzero(other)
        part = self._staying(rows)
        for column in fields(Stay):
            getattr(self._stay, column.name)[rows] = getattr(part, column.name)

    def _staying(self, rows: Integers) -> Stay:
        moments = self._moments[rows]
        # Stable: those whose end nobody knows leave by their UID, before the columns of nobody.
        order = np.argsort(moments, axis=1, kind="stable")
        return Stay(
            memory_bytes=sums_left(np.take_along_axis(self._memory[rows], order, 1)),
            utilization_percent=sums_left(np.take_along_axis(self._utilization[rows], order, 1)),
            slowdown_percent=least_left(np.take_along_axis(self._slowdown[rows], order, 1)),
            whole_card=sums_left(np.take_along_axis(self._whole[rows], order, 1)).astype(np.bool_),
            since=np.pad(np.take_along_axis(moments, order, 1), ((0, 0), (1, 0))),
            order=order,
        )


def _columns(counts: Sequence[int]) -> list[int]:
    """0, 1, ... for each row in turn, as many as its tenants."""
    return list(chain.from_iterable(map(range, counts)))
