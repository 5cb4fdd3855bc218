"""Counts the reasons that exclude jobs of a class from GPUs.

Only nodes that are a new object are diagnosed again, and the sum follows each change.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter, is_not

from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.placement.finding import (
    FARTHEST,
    NO_DIAGNOSIS,
    NO_GPUS,
    Nearest,
    NodeDiagnosis,
    UnfitReason,
)
from gpujob_operator.decide.placement.memo import Diagnose

_NEAREST = attrgetter("nearest")
_NominatedOn = Mapping[str, frozenset[str]]


@dataclass(slots=True)
class DiagnosisCounts:
    """The reasons that exclude jobs of a class from the GPUs of one model: by node, and the sum."""

    counts: Counter[UnfitReason] = field(default_factory=Counter[UnfitReason])
    _nodes: list[NodeCapacity] = field(default_factory=list[NodeCapacity])
    _diagnoses: list[NodeDiagnosis] = field(default_factory=list[NodeDiagnosis])
    _nominated_on: _NominatedOn = field(default_factory=dict[str, frozenset[str]])

    def renew(
        self, nodes: Mapping[str, NodeCapacity], nominated_on: _NominatedOn, diagnose: Diagnose
    ) -> None:
        """Diagnoses the nodes again that are new objects or have other nominated GPUs."""
        ordered = list(nodes.values())
        for row in self._changed(ordered, nominated_on):
            node = ordered[row]
            before = self._diagnoses[row]
            found = diagnose(node, nominated_on.get(node.node.name, NO_GPUS))
            self._diagnoses[row] = found
            if found.counts != before.counts:
                self._count(before, -1)
                self._count(found, 1)
        self._nodes, self._nominated_on = ordered, nominated_on

    @property
    def nearest(self) -> Nearest:
        return min(map(_NEAREST, self._diagnoses), default=FARTHEST)

    def _changed(self, nodes: list[NodeCapacity], nominated_on: _NominatedOn) -> list[int]:
        before = self._nodes
        changed = list(compress(range(len(nodes)), map(is_not, before, nodes)))
        same = len(before) == len(nodes)
        if not same or any(before[row].node.name != nodes[row].node.name for row in changed):
            self._nodes, self._diagnoses = nodes, [NO_DIAGNOSIS] * len(nodes)
            self.counts.clear()
            return list(range(len(nodes)))
        before_on, names = self._nominated_on, nominated_on.keys() | self._nominated_on.keys()
        other = {name for name in names if nominated_on.get(name) != before_on.get(name)}
        if other:
            nominated = (row for row, node in enumerate(nodes) if node.node.name in other)
            changed = sorted({*changed, *nominated})
        return changed

    def _count(self, found: NodeDiagnosis, sign: int) -> None:
        for finding, gpus in found.counts.items():
            self.counts[finding] += sign * gpus
            if not self.counts[finding]:
                del self.counts[finding]
