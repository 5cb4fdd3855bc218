"""Cached answers about nodes, because thousands of pending jobs ask the same questions."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.placement.finding import (
    FARTHEST,
    NO_GPUS,
    Nearest,
    NodeDiagnosis,
    UnfitReason,
)

T = TypeVar("T")
# Diagnoses one node. The set has its GPUs that are nominated for other jobs.
Diagnose = Callable[[NodeCapacity, frozenset[str]], NodeDiagnosis]


class Memo(Protocol):
    """Caches answers by a key that identifies the question. Dropping answers changes no result."""

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Returns the result of `find`, which may depend only on labels, taints and
        sizes of nodes.
        """
        ...

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        """Returns the sum of `diagnose` over the nodes, and the closest fit of all."""
        ...


class Forgetful:
    """A memo that caches nothing."""

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        return find()

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        counts: Counter[UnfitReason] = Counter()
        nearest = FARTHEST
        for name, node in nodes.items():
            found = diagnose(node, nominated_on.get(name, NO_GPUS))
            counts.update(found.counts)
            nearest = min(nearest, found.nearest)
        return counts, nearest
