"""Answers about the nodes, kept from cycle to cycle; the least recently used are dropped."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

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

    _answers: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    _diagnoses: dict[Hashable, DiagnosisCounts] = field(
        default_factory=dict[Hashable, DiagnosisCounts]
    )

    def forget(self) -> None:
        self._answers.clear()
        self._diagnoses.clear()

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        return _recent(self._answers, key, find, ANSWERS_MAX)

    def findings(
        self,
        key: Hashable,
        nodes: Mapping[str, NodeCapacity],
        nominated_on: Mapping[str, frozenset[str]],
        diagnose: Diagnose,
    ) -> tuple[Mapping[UnfitReason, int], Nearest]:
        """Looks again only at nodes that are another object."""
        survey = _recent(self._diagnoses, key, DiagnosisCounts, DIAGNOSES_MAX)
        survey.renew(nodes, nominated_on, diagnose)
        return survey.counts, survey.nearest


def _recent(known: dict[Hashable, T], key: Hashable, find: Callable[[], T], limit: int) -> T:
    """The value of the key, found if it is not there; it is the last to be dropped."""
    found = known.pop(key) if key in known else find()
    known[key] = found
    if len(known) > limit:
        del known[next(iter(known))]
    return found
