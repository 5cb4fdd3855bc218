"""The readings of the last day, one a minute for each GPU, in memory."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpunode import GPUNode

MINUTES = 24 * 60
GPUS_MAX = 20_000
# Points of a line on a page.
POINTS = 240


@dataclass(frozen=True, slots=True)
class Line:
    """A series as points of an SVG line of 240 by 40, and the numbers at its ends."""

    name: str
    unit: str
    points: str
    last: float
    minutes: int


@dataclass(slots=True)
class History:
    """Memory and utilization in per cent. A minute without a reading is left out."""

    _memory: "dict[str, array[float]]" = field(default_factory=dict)
    _utilization: "dict[str, array[float]]" = field(default_factory=dict)
    _read_at: dict[str, datetime] = field(default_factory=dict)

    def note(self, nodes: Iterable[GPUNode]) -> None:
        """Takes the present readings. It is called once a minute."""
        for node in nodes:
            at = node.status.observed_at
            if at is None or self._read_at.get(node.metadata.name) == at:
                continue
            self._read_at[node.metadata.name] = at
            for gpu in node.status.gpus:
                if gpu.uuid not in self._memory and len(self._memory) >= GPUS_MAX:
                    continue
                share = 100 * gpu.memory_used_bytes / gpu.memory_total_bytes
                _append(self._memory, gpu.uuid, share)
                _append(self._utilization, gpu.uuid, gpu.utilization_percent)

    def lines(self, uuid: str) -> Sequence[Line]:
        """Returns the series of a GPU, without any before its second reading."""
        found = (
            ("memory", self._memory.get(uuid)),
            ("utilization", self._utilization.get(uuid)),
        )
        return [_line(name, values) for name, values in found if values and len(values) > 1]


def _append(series: "dict[str, array[float]]", uuid: str, value: float) -> None:
    values = series.setdefault(uuid, array("f"))
    values.append(value)
    if len(values) > MINUTES:
        del values[0]


def _line(name: str, values: "array[float]") -> Line:
    step = max((len(values) + POINTS - 1) // POINTS, 1)
    kept = list(values[::step])
    across = 240 / max(len(kept) - 1, 1)
    points = " ".join(
        f"{number * across:.0f},{40 - min(max(value, 0), 100) * 0.4:.0f}"
        for number, value in enumerate(kept)
    )
    return Line(name, "%", points, values[-1], len(values))
