"""Finds places for the workers of a gang that must be spread.

Workers are placed one after the other, as in kube-scheduler.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=tuple[object, ...] | str)
Place = TypeVar("Place")


@dataclass(slots=True)
class DomainLimit(Generic[Node]):
    """Allows at most `most` workers in a domain, or `skew` more than in the domain with the fewest.

    A node without a domain takes any number of workers, or none if the domains have to be balanced.
    """

    domain_of: Mapping[Node, object]
    most: int | None
    skew: int | None
    _counts: Counter[object] = field(default_factory=Counter[object])
    # The count of the domain with the fewest workers. None: not counted yet.
    _fewest: int | None = None

    def allows(self, node: Node) -> bool:
        domain = self.domain_of.get(node)
        if domain is None:
            return self.skew is None
        count = self._counts[domain]
        if self.most is not None and count >= self.most:
            return False
        if self.skew is None:
            return True
        if self._fewest is None:
            self._fewest = min(self._counts[one] for one in set(self.domain_of.values()))
        return count + 1 - self._fewest <= self.skew

    def put(self, node: Node) -> None:
        self._counts[self.domain_of.get(node)] += 1
        self._fewest = None

    def cleared(self) -> "DomainLimit[Node]":
        return DomainLimit(self.domain_of, self.most, self.skew)


def take_apart(node: Node, limits: Sequence[DomainLimit[Node]]) -> bool:
    """Counts one more worker on the node if every limit allows it. Returns whether it was
    counted.
    """
    if not all(limit.allows(node) for limit in limits):
        return False
    for limit in limits:
        limit.put(node)
    return True


def first_apart(
    places: Iterable[Place],
    workers: int,
    limits: Sequence[DomainLimit[Node]],
    node_of: Callable[[Place], Node],
) -> list[Place]:
    """Returns the first places, in the given order, that the limits allow together.

    A place that is one too many in its domain is taken once the other domains have as many.
    """
    chosen, passed = list[Place](), list[Place]()
    for place in places:
        if not take_apart(node_of(place), limits):
            passed.append(place)
            continue
        chosen.append(place)
        while len(chosen) < workers:
            order = enumerate(passed)
            found = next((n for n, one in order if take_apart(node_of(one), limits)), None)
            if found is None:
                break
            chosen.append(passed.pop(found))
        if len(chosen) == workers:
            break
    return chosen


def place_apart(
    free: Mapping[Node, int],
    workers: int,
    limits: Sequence[DomainLimit[Node]],
    levels: Sequence[Mapping[Node, object]] = (),
) -> tuple[tuple[Node, int], ...]:
    """Returns (node, workers) for as many workers as fit.

    All are in one domain of the closest level on which one domain holds all workers. They may be
    anywhere if there is no such level.
    """
    for level in levels:
        domains: dict[object, dict[Node, int]] = {}
        for node, count in free.items():
            if node in level:
                domains.setdefault(level[node], {})[node] = count
        found = [_greedy(nodes, workers, limits) for nodes in domains.values()]
        whole = [parts for parts in found if sum(parts.values()) == workers]
        if whole:
            return tuple(min(whole, key=len).items())
    return tuple(_greedy(free, workers, limits).items())


def _greedy(
    free: Mapping[Node, int], workers: int, limits: Sequence[DomainLimit[Node]]
) -> dict[Node, int]:
    """Puts each worker on a node that already has one, or else on the node with the most places."""
    limits, left = [limit.cleared() for limit in limits], dict(free)
    parts: dict[Node, int] = {}
    for _ in range(workers):
        order = sorted(left, key=lambda node: (node not in parts, -left[node], node))
        node = next((one for one in order if left[one] and take_apart(one, limits)), None)
        if node is None:
            break
        left[node] -= 1
        parts[node] = parts.get(node, 0) + 1
    return parts
