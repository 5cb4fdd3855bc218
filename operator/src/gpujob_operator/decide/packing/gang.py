"""Chooses the nodes of a gang: close together, on as few nodes as possible, keeping idle nodes
whole.

Each step of a gang ends with a synchronization. Its cost grows with the number of nodes and with
their distance, so a gang on fewer nodes of one rack is faster. An idle node that stays whole can
take the next large gang.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=tuple[object, ...] | str)
# The number of the gang's workers on each node.
Parts = tuple[tuple[Node, int], ...]


def place_gang(
    free: Mapping[Node, int], workers: int, levels: Sequence[Mapping[Node, object]] = ()
) -> Parts[Node] | None:
    """Returns (node, workers) for all workers, largest part first, or None unless all fit.

    `free` is the number of workers that each node could take. `levels` have each node's rack, zone
    and so on, with the closest level first. The first level on which one domain holds all workers
    is used. The domain with the fewest nodes is taken, then the one with the least capacity left
    over. Within the domain, the fullest nodes that can be used up completely are taken first, then
    for the rest the node with the least left over. Ties are broken by the order of domains and
    nodes.
    """
    if workers <= 0:
        return None
    for level in levels:
        found = _in_one_domain(free, workers, level)
        if found is not None:
            return found
    return _fewest_nodes(free, workers)


def _in_one_domain(
    free: Mapping[Node, int], workers: int, level: Mapping[Node, object]
) -> Parts[Node] | None:
    domains: dict[object, dict[Node, int]] = {}
    for node, count in free.items():
        if node in level:
            domains.setdefault(level[node], {})[node] = count
    best: tuple[int, int, object] | None = None
    chosen: Parts[Node] | None = None
    for domain, nodes in domains.items():
        parts = _fewest_nodes(nodes, workers)
        if parts is None:
            continue
        key = (len(parts), sum(nodes.values()) - workers, domain)
        if best is None or key < best:
            best, chosen = key, parts
    return chosen


def _fewest_nodes(free: Mapping[Node, int], workers: int) -> Parts[Node] | None:
    if sum(free.values()) < workers:
        return None
    left = dict(free)
    chosen: list[tuple[Node, int]] = []
    while workers:
        node = _best_node(left, workers)
        count = min(left.pop(node), workers)
        chosen.append((node, count))
        workers -= count
    return tuple(chosen)


def _best_node(free: Mapping[Node, int], workers: int) -> Node:
    enough = [(count, node) for node, count in free.items() if count >= workers]
    if enough:
        return min(enough)[1]
    return min((-count, node) for node, count in free.items())[1]
