"""Which nodes a gang's cards come from: as few nodes as there are, leaving whole nodes whole.

A step of a gang ends with a synchronisation whose cost grows with the number of nodes, so that a
gang on fewer nodes is faster, and an idle node kept whole is where the next large one goes.
"""

from collections.abc import Mapping

NodeCards = tuple[tuple[str, int], ...]


def place_gang(free_cards: Mapping[str, int], cards: int) -> NodeCards | None:
    """(node, cards) for all members, largest part first; None unless all fit.

    Takes the fullest nodes that can be used up completely, then for what is left over the node
    where least stays free. Ties go by the node's name.
    """
    if cards <= 0 or sum(free_cards.values()) < cards:
        return None
    left = dict(free_cards)
    chosen: list[tuple[str, int]] = []
    while cards:
        node = _best_node(left, cards)
        count = min(left.pop(node), cards)
        chosen.append((node, count))
        cards -= count
    return tuple(chosen)


def _best_node(free: Mapping[str, int], cards: int) -> str:
    enough = [(count, node) for node, count in free.items() if count >= cards]
    if enough:
        return min(enough)[1]
    return min((-count, node) for node, count in free.items())[1]
