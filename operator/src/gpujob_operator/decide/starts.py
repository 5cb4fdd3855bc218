"""Where workers of a waiting job could be, and from when on, soonest first.

For every card: how many of its tenants must be gone, and when the last of them is expected to be
(`releases`). Every card of the cluster is asked, so what was found is kept from cycle to cycle and
looked at anew only where the card or the order in which its tenants leave is another.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import NamedTuple

from gpujob_api.gpujob import Reservation
from gpujob_operator.decide.board import disturbed
from gpujob_operator.decide.capacity import Capacity, Card, NodeCapacity, Tenant
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.interference import summed_utilization_limit_percent
from gpujob_operator.decide.needs import Needs, node_refusal
from gpujob_operator.decide.releases import Releases

# Kinds of jobs and models of which places are kept; the last that were asked for.
KEPT_MAX = 16
# Before every moment: a card is ready, or will be once it was read again.
_READY, _UNREAD = 0.0, 1.0


class Soon(NamedTuple):
    """How soon a card is ready: the moment in seconds since 1970, how many must go first, its free
    memory negated; then the UUID."""

    at: float
    leaving: int
    lacking_bytes: int
    uuid: str


class Place(NamedTuple):
    """Cards of one node for one worker: how soon the last of them is ready, and who must be gone by
    then."""

    soon: Soon
    uuids: tuple[str, ...]
    cards: tuple[Card, ...]
    tenants: tuple[Tenant, ...]

    @property
    def unread(self) -> bool:
        """Whether memory of pods that have ended is still in the last reading."""
        return any(card.leaving_bytes for card in self.cards)


# A place in short: how soon, the node's name, the numbers of its cards. Plain tuples of plain
# values: there are as many as cards for every kind, and the garbage collector passes over these.
_Short = tuple[float, int, int, str, str, tuple[int, ...]]


@dataclass(slots=True)
class InOrder:
    """Places, the soonest first; put in order only as far as anybody looks."""

    _heap: list[_Short]
    _nodes: Mapping[str, "_OnNode"]
    _seen: list[Place] = field(default_factory=list[Place])

    def __post_init__(self) -> None:
        heapify(self._heap)

    def __iter__(self) -> Iterator[Place]:
        for number in itertools.count():
            if number == len(self._seen):
                if not self._heap:
                    return
                at, count, lacking_bytes, uuid, name, numbers = heappop(self._heap)
                soon = Soon(at, count, lacking_bytes, uuid)
                self._seen.append(self._nodes[name].place(soon, numbers))
            yield self._seen[number]


@dataclass(slots=True)
class _Leaving:
    """Who leaves each card of a node, in order, and at what moment."""

    node: NodeCapacity
    # Of all tenants, card by card.
    moments: list[float]
    orders: list[tuple[Tenant, ...]]
    ends: list[tuple[float, ...]]
    # Of the releases that these moments were asked of.
    version: int


@dataclass(frozen=True, slots=True)
class _OnNode:
    """Where workers of a kind could be on a node."""

    leaving: _Leaving
    # Of each card: how many of its tenants must go, in their order, and its free memory negated;
    # None: it never fits.
    found: list[tuple[int, int] | None]
    places: list[_Short]

    def place(self, soon: Soon, numbers: tuple[int, ...]) -> Place:
        cards = tuple(self.leaving.node.cards[number] for number in numbers)
        tenants: list[Tenant] = []
        for number in numbers:
            here = self.found[number]
            tenants += self.leaving.orders[number][: here[0] if here is not None else 0]
        return Place(soon, tuple(card.uuid for card in cards), cards, tuple(tenants))


@dataclass(slots=True)
class Starts:
    """Give the same one to every cycle of one configuration; it changes no answer."""

    _leaving: dict[str, _Leaving] = field(default_factory=dict[str, _Leaving])
    _kept: dict[Hashable, dict[str, _OnNode]] = field(
        default_factory=dict[Hashable, dict[str, _OnNode]]
    )

    def places(
        self, needs: Needs, capacity: Capacity, releases: Releases, configuration: Configuration
    ) -> tuple[InOrder, ...]:
        """For every model that the job accepts."""
        self._renew_leaving(capacity, releases)
        found: list[InOrder] = []
        for model in capacity.models(needs.job.spec.gpu.models):
            wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
            found.append(self._on_model(_Kind(needs, model, wanted)))
        return tuple(found)

    def _renew_leaving(self, capacity: Capacity, releases: Releases) -> None:
        kept, version = self._leaving, releases.version
        for name, node in capacity.nodes.items():
            here = kept.get(name)
            if here is not None and here.node is not node:
                here = None
            if here is not None and here.version == version:
                continue
            moments = [releases.moment(t.job_uid) for card in node.cards for t in card.tenants]
            if here is not None and here.moments == moments:
                here.version = version
            else:
                kept[name] = _leaving_of(node, moments, version)
        if len(kept) > len(capacity.nodes):
            for name in kept.keys() - capacity.nodes.keys():
                del kept[name]

    def _on_model(self, kind: "_Kind") -> InOrder:
        before = self._kept.pop((kind.needs.alike, kind.model, kind.wanted), {})
        after: dict[str, _OnNode] = {}
        places: list[_Short] = []
        for name, leaving in self._leaving.items():
            here = before.get(name)
            if here is None or here.leaving is not leaving:
                here = _on_node(kind, leaving, here)
            after[name] = here
            places += here.places
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[(kind.needs.alike, kind.model, kind.wanted)] = after
        return InOrder(places, after)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A worker to be placed: its job's needs, on cards of this model, of which it holds so much."""

    needs: Needs
    model: str
    wanted: Reservation | None
    least_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "least_bytes", self.needs.least_bytes(self.model, self.wanted))

    def must_leave(self, card: Card, order: tuple[Tenant, ...]) -> int | None:
        """How many of the tenants must be gone, in this order, before the card can take the worker;
        None: all is not enough. The last to leave are let stay one by one while it still fits."""
        free_bytes = card.room_soon_bytes - self.least_bytes
        if card.blocked or free_bytes < 0:
            return None
        if self.needs.exclusive and disturbed(card, soon=True):
            return None
        if self.wanted is None:
            return len(order)
        limit = self.needs.job.spec.sharing.max_slowdown_percent
        used_percent = self.wanted.utilization_percent
        for number in range(len(order), 0, -1):
            tenant = order[number - 1]
            free_bytes -= tenant.memory_bytes + tenant.excess_bytes
            used_percent += tenant.utilization_percent
            limit = min(limit, tenant.max_slowdown_percent)
            limit_percent = summed_utilization_limit_percent(limit, card.law)
            if tenant.whole_card or free_bytes < 0 or used_percent > limit_percent:
                return number
        return 0


def _leaving_of(node: NodeCapacity, moments: list[float], version: int) -> _Leaving:
    orders: list[tuple[Tenant, ...]] = []
    ends: list[tuple[float, ...]] = []
    first = 0
    for card in node.cards:
        tenants = card.tenants
        here = tuple(moments[first : first + len(tenants)])
        first += len(tenants)
        if len(tenants) > 1:
            uids = [tenant.job_uid for tenant in tenants]
            order = sorted(zip(here, uids, range(len(uids)), strict=True))
            here = tuple([end for end, _, _ in order])
            tenants = tuple([card.tenants[number] for _, _, number in order])
        orders.append(tenants)
        ends.append(here)
    return _Leaving(node, moments, orders, ends, version)


def _on_node(kind: _Kind, leaving: _Leaving, before: _OnNode | None) -> _OnNode:
    if not _is_open(kind.needs, leaving.node):
        return _OnNode(leaving, [], [])
    name = leaving.node.node.name
    found: list[tuple[int, int] | None] = []
    places: list[_Short] = []
    for number, (card, order) in enumerate(zip(leaving.node.cards, leaving.orders, strict=True)):
        if before is not None and _is_same(before, number, card, order):
            here = before.found[number]
        else:
            here = _on_card(kind, card, order)
        found.append(here)
        if here is not None:
            count, lacking_bytes = here
            at = _UNREAD if card.leaving_bytes else _READY
            if count:
                at = max(at, leaving.ends[number][count - 1])
            places.append((at, count, lacking_bytes, card.uuid, name, (number,)))
    size = kind.needs.job.spec.gpus_per_worker
    return _OnNode(leaving, found, places if size == 1 else _groups(size, places))


def _is_same(before: _OnNode, number: int, card: Card, order: tuple[Tenant, ...]) -> bool:
    """Whether the card was asked already, with its tenants in the same order."""
    if number >= len(before.found):
        return False
    leaving = before.leaving
    return leaving.node.cards[number] is card and leaving.orders[number] == order


def _on_card(kind: _Kind, card: Card, order: tuple[Tenant, ...]) -> tuple[int, int] | None:
    count = kind.must_leave(card, order) if card.model == kind.model else None
    return (count, -card.free_bytes) if count is not None else None


def _groups(size: int, cards: list[_Short]) -> list[_Short]:
    """Places of so many cards, of places of one each: those that are ready first together."""
    cards.sort()
    groups = (cards[first : first + size] for first in range(0, len(cards) - size + 1, size))
    return [(*group[-1][:5], tuple(number for *_, (number,) in group)) for group in groups]


def fits_without(
    needs: Needs, wanted: Reservation | None, card: Card, gone: frozenset[str]
) -> bool:
    """Whether the card could take a worker once these tenants have gone and another reading has
    come."""
    stay = [tenant for tenant in card.tenants if tenant.job_uid not in gone]
    if wanted is None:
        return not stay and card.room_soon_bytes >= needs.least_bytes(card.model, None)
    if any(tenant.whole_card for tenant in stay):
        return False
    held_bytes = sum(tenant.memory_bytes + tenant.excess_bytes for tenant in stay)
    if card.room_soon_bytes - held_bytes < wanted.memory_bytes:
        return False
    if not stay:
        return True
    limits = [tenant.max_slowdown_percent for tenant in stay]
    limit = min(*limits, needs.job.spec.sharing.max_slowdown_percent)
    total = sum(tenant.utilization_percent for tenant in stay) + wanted.utilization_percent
    return total <= summed_utilization_limit_percent(limit, card.law)


def nodes_for(needs: Needs, capacity: Capacity) -> list[NodeCapacity]:
    """Open nodes that the job may use, by name."""
    return [node for node in capacity.nodes.values() if _is_open(needs, node)]


def _is_open(needs: Needs, node: NodeCapacity) -> bool:
    return not node.closed and not node_refusal(needs, node.node)
