"""Answers about the nodes that are asked for again and again, by thousands of pending jobs."""

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
# Of one node, with those of its GPUs that are kept for other jobs.
Diagnose = Callable[[NodeCapacity, frozenset[str]], NodeDiagnosis]


class Memo(Protocol):
    """Remembers answers by a key that stands for the question; dropping them changes none."""

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` returns, which rests only on labels, taints and sizes of nodes."""
        ...

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        """The sum of what `look` says of each node, and the nearest fit of all."""
        ...


class Forgetful:
    """A memo that asks anew each time."""

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
