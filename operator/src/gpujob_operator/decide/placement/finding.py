"""What keeps a job off the GPUs of one node, counted, and the nearest fit."""

from collections.abc import Mapping
from typing import NamedTuple

# Bytes that are missing on a GPU, its UUID and its node's name; the least is the nearest fit.
Nearest = tuple[int, str, str]
# Farther than every GPU.
FARTHEST: Nearest = (2**63, "", "")
NO_GPUS: frozenset[str] = frozenset()


class UnfitReason(NamedTuple):
    """What keeps a job off a GPU. The figure, if there is one, stands at the {} of the text."""

    text: str
    figure: int = 0


class NodeDiagnosis(NamedTuple):
    """Of one node: how many GPUs for each reason, and the nearest fit."""

    counts: Mapping[UnfitReason, int] = {}
    nearest: Nearest = FARTHEST


NO_DIAGNOSIS = NodeDiagnosis()
