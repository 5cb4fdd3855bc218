"""A node of the table, and a family of values: the functions that read and restore them.

A node is a dictionary of plain values, tensors and references to other nodes. Kinds of nodes and
the names of their fields are stored, so a change of them needs another `FORMAT`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Field of a node that has its kind.
KIND = "k"
# Kind of a value that only its library can read, and makes again.
LEFT = "left"

Node = dict[str, Any]
# A plain value, or the reference `("r", index)` to a node.
Encoded = Any
# (reader, value, path) -> node. The path is the value's name in a refusal.
Read = Callable[[Any, Any, str], Node]
# (restorer, index, node, existing, path). It binds the node to its value: to `existing`, the
# value that has the variable's name in this run, if that fits.
Restore = Callable[[Any, int, Node, Any, str], None]


@dataclass(frozen=True)
class Family:
    """Functions for the values of a family, in both directions."""

    restores: Mapping[str, Restore]
    """By the kind of the node."""
    reads: Mapping[type, Read] = field(default_factory=dict[type, Read])
    """By the exact type of the value."""
    reads_of_bases: tuple[tuple[Any, Read], ...] = ()
    """By base class, for types without an entry in `reads`. The first that fits is called."""


def joined(families: Iterable[Family]) -> Family:
    """Returns one family for all their values. Base classes keep the order of the families."""
    every = list(families)
    return Family(
        {kind: each for family in every for kind, each in family.restores.items()},
        {kind: each for family in every for kind, each in family.reads.items()},
        tuple(each for family in every for each in family.reads_of_bases),
    )
