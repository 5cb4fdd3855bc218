"""Scores of every node for each class of request, renewed row by row as the arrays change."""

from dataclasses import dataclass, field, replace

import numpy as np

from gpujob_operator.decide.packing.arrays import Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import WorkloadMix
from gpujob_operator.decide.packing.fragmentation import (
    STRANDED_WEIGHT,
    USABLE_WEIGHT,
    CostTerms,
    FragmentationCost,
)
from gpujob_operator.decide.packing.request import Request

# Maximum number of requests whose scores are kept.
REQUESTS_MAX = 512


@dataclass(slots=True)
class NodeScores:
    """The cost without scarcity and its parts, by row, and the chosen GPU if one shared GPU is
    requested.
    """

    cost: Floats
    worth: Floats
    usable: Floats
    stranded: Floats
    gpu: Integers
    seen: int = 0

    @classmethod
    def none_fits(cls, rows: int) -> "NodeScores":
        parts = (np.full(rows, np.inf) for _ in range(4))
        return cls(*parts, gpu=np.full(rows, -1, dtype=np.int64))

    def reordered(self, order: Integers) -> "NodeScores":
        return replace(
            self,
            cost=self.cost[order],
            worth=self.worth[order],
            usable=self.usable[order],
            stranded=self.stranded[order],
            gpu=self.gpu[order],
        )

    def put(self, rows: Integers, parts: CostTerms, at: Integers | slice) -> None:
        """Stores the results of an evaluation of these rows."""
        self.worth[rows] = parts.worth[at]
        self.usable[rows] = USABLE_WEIGHT * parts.usable[at]
        self.stranded[rows] = STRANDED_WEIGHT * parts.stranded[at]
        self.cost[rows] = self.worth[rows] + self.usable[rows] + self.stranded[rows]


@dataclass(slots=True)
class ScoreCache:
    """Cached scores of one set of arrays. Dropping it changes no choice."""

    fragmentation: FragmentationCost | None = None
    scores: dict[Request, NodeScores] = field(default_factory=dict[Request, NodeScores])

    def reordered(self, order: Integers) -> "ScoreCache":
        """Returns the scores for arrays with their rows in this order."""
        return ScoreCache(
            self.fragmentation.reordered(order) if self.fragmentation is not None else None,
            {request: scores.reordered(order) for request, scores in self.scores.items()},
        )

    def of(self, arrays: NodeArrays, mix: WorkloadMix) -> FragmentationCost:
        if self.fragmentation is None or self.fragmentation.tables.mix is not mix:
            self.fragmentation = FragmentationCost(arrays, mix)
            self.scores.clear()
        kinds = len(self.fragmentation.tables.kinds)
        self.fragmentation.renew(arrays)
        if kinds != len(self.fragmentation.tables.kinds):
            self.scores.clear()
        return self.fragmentation
