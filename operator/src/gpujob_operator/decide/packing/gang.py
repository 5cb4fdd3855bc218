"""Which nodes a gang's workers go to: close together, on as few nodes as there are, leaving whole
nodes whole.

A step of a gang ends with a synchronisation whose cost grows with the number of nodes and with how
far apart they are, so that a gang on fewer nodes of one rack is faster; and an idle node kept whole
is where the next large one goes.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=tuple[object, ...] | str)
# A node's part of the gang, in workers.
Parts = tuple[tuple[Node, int], ...]


def place_gang(
    free: Mapping[Node, int], workers: int, levels: Sequence[Mapping[Node, object]] = ()
) -> Parts[Node] | None:
    """(node, workers) for all members, largest part first; None unless all fit.

    `free` is how many workers each node could take. `levels` say to which rack, zone ... a node
    belongs, the closest first: the first level is taken on which one domain holds all workers, and
    there the domain with the fewest nodes, then with the least room left over. Within it, the
    fullest nodes that can be used up completely, then for what is left the node where least stays
    free. Ties go by the domain and the node, which have an order.
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
