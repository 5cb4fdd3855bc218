"""What agents read of their nodes, whichever of two ways it came: directly, or by the status of the
GPUNode.

An agent speaks on one way at a time. While its connection is open, what it sent there counts, and
the status is for people. Once the connection is closed, a status counts again that is not older
than the last direct reading. A reading has one age on either way, that on the operator's clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gpunode import GPUNode, GPUNodeStatus
from gpujob_operator.observe.freshness import Freshness
from gpujob_operator.observe.program_faults import ProgramFaults
from gpujob_operator.observe.usage import MeasuredUsage, PodOf
from gpujob_operator.read.nouns import Dropped, read_gpu_node, written_at

# A status and a direct reading of the same moment may differ by so much: their times are estimates.
SAME_MOMENT_SECONDS = 1.0


@dataclass(slots=True)
class _Direct:
    status: GPUNodeStatus
    taken_at: datetime
    open: bool = True


class NodeReadings:
    """The readings that count. Bounded by the GPUNodes that exist and the open connections."""

    def __init__(self, worker: PodOf, clock: Callable[[], datetime], dropped: Dropped) -> None:
        self.usage = MeasuredUsage()
        self.program_faults = ProgramFaults()
        self._freshness = Freshness()
        self._worker = worker
        self._clock = clock
        self._dropped = dropped
        self._direct: dict[str, _Direct] = {}
        # The newest status of each node, with its time on the operator's clock.
        self._written: dict[str, GPUNode] = {}

    def read(self, manifest: Mapping[str, Any]) -> GPUNode:
        """The node with the readings that count now. Raises `FieldError`."""
        node = read_gpu_node(manifest, self._dropped)
        name, observed_at = node.metadata.name, node.status.observed_at
        at = self._freshness.arrived(name, observed_at, self._clock(), written_at(manifest))
        self._written[name] = replace(node, status=replace(node.status, observed_at=at))
        direct = self._chosen_direct(name)
        if direct is None:
            self._learn(node)
        return self.current(self._written[name])

    def take(self, node: GPUNode, status: GPUNodeStatus, taken_at: datetime) -> GPUNode:
        """The node with a reading that its agent sent. `taken_at` is on the operator's clock."""
        self._direct[node.metadata.name] = _Direct(status, taken_at)
        self._learn(replace(node, status=status))
        return self.current(node)

    def close(self, name: str) -> None:
        """The agent's connection is gone."""
        direct = self._direct.get(name)
        if direct is not None:
            direct.open = False

    def current(self, node: GPUNode) -> GPUNode:
        """The node with the readings that count now."""
        direct = self._chosen_direct(node.metadata.name)
        if direct is not None:
            return replace(node, status=replace(direct.status, observed_at=direct.taken_at))
        written = self._written.get(node.metadata.name)
        return node if written is None else replace(node, status=written.status)

    def forget(self, name: str) -> None:
        """The GPUNode is gone."""
        self._freshness.forget(name)
        self.program_faults.forget(name)
        self._direct.pop(name, None)
        self._written.pop(name, None)

    def clock_moved(self, by: timedelta) -> tuple[str, ...]:
        """The operator's clock was set. Returns the nodes whose readings' times were moved."""
        self._freshness.clock_moved(by)
        for direct in self._direct.values():
            direct.taken_at += by
        for name, node in self._written.items():
            moved = replace(node.status, observed_at=self._freshness.moment(name))
            self._written[name] = replace(node, status=moved)
        return tuple({**self._direct, **self._written})

    def _chosen_direct(self, name: str) -> _Direct | None:
        """The direct reading if it counts, None if the status does."""
        direct, written = self._direct.get(name), self._written.get(name)
        if direct is None or direct.open or written is None:
            return direct
        written_at = written.status.observed_at
        limit = direct.taken_at - timedelta(seconds=SAME_MOMENT_SECONDS)
        return direct if written_at is None or written_at < limit else None

    def _learn(self, node: GPUNode) -> None:
        """`node` has the agent's own time, which tells a new reading from the last one."""
        self.usage.observe(node, self._worker)
        self.program_faults.observe(node, self._worker)
