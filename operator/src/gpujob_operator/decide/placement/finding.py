"""Why a job does not fit on the GPUs of one node, counted by reason, and the closest fit."""

from collections.abc import Mapping
from typing import NamedTuple

# Missing bytes on a GPU, its UUID and its node's name. The smallest is the closest fit.
Nearest = tuple[int, str, str]
# Farther than any GPU.
FARTHEST: Nearest = (2**63, "", "")
NO_GPUS: frozenset[str] = frozenset()


class UnfitReason(NamedTuple):
    """Why a job does not fit on a GPU. A figure, if any, replaces the {} of the text."""

    text: str
    figure: int = 0


class NodeDiagnosis(NamedTuple):
    """The number of one node's GPUs for each reason, and the closest fit."""

    counts: Mapping[UnfitReason, int] = {}
    nearest: Nearest = FARTHEST


NO_DIAGNOSIS = NodeDiagnosis()
