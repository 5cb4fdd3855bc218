"""Answers about the nodes, kept from cycle to cycle; the least recently used are dropped."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from gpujob_operator.decide.cache.diagnosis_counts import DiagnosisCounts
from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.placement.finding import Nearest, UnfitReason
from gpujob_operator.decide.placement.memo import Diagnose

T = TypeVar("T")
ANSWERS_MAX = 4096
# Each holds what was found on every node.
DIAGNOSES_MAX = 64


@dataclass(slots=True)
class NodeMemo:
    """The `Memo` of one operator. Call `forget` when a node's labels, taints or sizes changed."""

    _answers: LRUCache[Hashable, Any] = field(default_factory=lambda: LRUCache(ANSWERS_MAX))
    _diagnoses: LRUCache[Hashable, DiagnosisCounts] = field(
        default_factory=lambda: LRUCache(DIAGNOSES_MAX)
    )

    def forget(self) -> None:
        self._answers.clear()
        self._diagnoses.clear()

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        return _found(self._answers, key, find)

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        """Looks again only at nodes that are another object."""
        diagnosed = _found(self._diagnoses, key, DiagnosisCounts)
        diagnosed.renew(nodes, nominated_on, diagnose)
        return diagnosed.counts, diagnosed.nearest


def _found(answers: LRUCache[Hashable, T], key: Hashable, find: Callable[[], T]) -> T:
    """The answer that is kept, or else what `find` returns."""
    try:
        return answers[key]
    except KeyError:
        answer = answers[key] = find()
        return answer
