"""Agents' readings of their nodes, from either of two sources: direct, or the status of the
GPUNode.

An agent uses one source at a time. While its connection is open, its direct readings count, and the
status is for people. After the connection is closed, a status counts again once it is not older
than the last direct reading. The age of a reading is always on the operator's clock.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gpunode import GPUNode, GPUNodeStatus
from gpujob_operator.decide.model.snapshot import PodView, ProgramFault
from gpujob_operator.observe.freshness import Freshness
from gpujob_operator.observe.usage import MeasuredUsage, PodOf
from gpujob_operator.read.nouns import Dropped, read_gpu_node, written_at

# A status and a direct reading of the same moment may differ by this much, because both times are
# estimates.
SAME_MOMENT_SECONDS = 1.0
PODS_REMEMBERED_MAX = 4096


class ProgramFaults:
    """Errors of GPU drivers that programs met, by job.

    The job of a pod is known from the time when the pod was seen. A new leader has no record of
    pods that are gone, so it attributes fewer errors. Bounded by the nodes, by what each of their
    readings can report, and by `PODS_REMEMBERED_MAX`.
    """

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[ProgramFault, ...]] = {}
        self._faults: tuple[ProgramFault, ...] | None = ()
        # Pods that met an error, and pods that went: their node, their job and its namespace.
        self._owners: OrderedDict[str, tuple[str, str, str]] = OrderedDict()

    def observe(self, node: GPUNode, pod_of: PodOf) -> None:
        """Stores the errors in a node's newest reading."""
        found: list[ProgramFault] = []
        for gpu in node.status.gpus:
            for event in gpu.xids:
                owner = self._owner(event.pod_uid or "", pod_of)
                # An agent may only report about the pods of its node.
                if owner is not None and owner[0] == node.metadata.name:
                    found.append(ProgramFault(owner[0], gpu.uuid, event.xid, *owner[1:]))
        self._put(node.metadata.name, tuple(found))

    def remember(self, pod: PodView) -> None:
        """Records a worker pod that goes, because a later reading may name it."""
        if pod.job_uid and pod.node is not None:
            self._keep(pod.uid, (pod.node, pod.job_uid, pod.namespace))

    def forget(self, node: str) -> None:
        self._put(node, ())

    def all(self) -> tuple[ProgramFault, ...]:
        """Returns all faults. The object stays the same until something changes."""
        if self._faults is None:
            nodes = sorted(self._by_node)
            self._faults = tuple(fault for name in nodes for fault in self._by_node[name])
        return self._faults

    def _put(self, node: str, faults: tuple[ProgramFault, ...]) -> None:
        if self._by_node.get(node, ()) == faults:
            return
        self._by_node.pop(node, None)
        if faults:
            self._by_node[node] = faults
        self._faults = None

    def _owner(self, pod_uid: str, pod_of: PodOf) -> tuple[str, str, str] | None:
        known = self._owners.get(pod_uid)
        pod = pod_of(pod_uid) if pod_uid and known is None else None
        if pod is None or pod.node is None:
            return known
        return self._keep(pod_uid, (pod.node, pod.job_uid, pod.namespace))

    def _keep(self, pod_uid: str, owner: tuple[str, str, str]) -> tuple[str, str, str]:
        self._owners[pod_uid] = owner
        self._owners.move_to_end(pod_uid)
        while len(self._owners) > PODS_REMEMBERED_MAX:
            self._owners.popitem(last=False)
        return owner


@dataclass(slots=True)
class _Direct:
    status: GPUNodeStatus
    taken_at: datetime
    open: bool = True


class NodeReadings:
    """The readings that count. Bounded by the existing GPUNodes and the open connections."""

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
        """Returns the node with the readings that count now. Raises `FieldError`."""
        node = read_gpu_node(manifest, self._dropped)
        name, observed_at = node.metadata.name, node.status.observed_at
        at = self._freshness.arrived(name, observed_at, self._clock(), written_at(manifest))
        self._written[name] = replace(node, status=replace(node.status, observed_at=at))
        direct = self._chosen_direct(name)
        if direct is None:
            self._learn(node)
        return self.current(self._written[name])

    def take(self, node: GPUNode, status: GPUNodeStatus, taken_at: datetime) -> GPUNode:
        """Returns the node with a reading that its agent sent. `taken_at` is on the operator's
        clock.
        """
        self._direct[node.metadata.name] = _Direct(status, taken_at)
        self._learn(replace(node, status=status))
        return self.current(node)

    def close(self, name: str) -> None:
        """Marks the agent's connection as closed."""
        direct = self._direct.get(name)
        if direct is not None:
            direct.open = False

    def current(self, node: GPUNode) -> GPUNode:
        """Returns the node with the readings that count now."""
        direct = self._chosen_direct(node.metadata.name)
        if direct is not None:
            return replace(node, status=replace(direct.status, observed_at=direct.taken_at))
        written = self._written.get(node.metadata.name)
        return node if written is None else replace(node, status=written.status)

    def forget(self, name: str) -> None:
        """Drops a GPUNode that is gone."""
        self._freshness.forget(name)
        self.program_faults.forget(name)
        self._direct.pop(name, None)
        self._written.pop(name, None)

    def clock_moved(self, by: timedelta) -> tuple[str, ...]:
        """Moves times with the operator's clock. Returns the nodes whose readings' times were
        moved.
        """
        self._freshness.clock_moved(by)
        for direct in self._direct.values():
            direct.taken_at += by
        for name, node in self._written.items():
            moved = replace(node.status, observed_at=self._freshness.moment(name))
            self._written[name] = replace(node, status=moved)
        return tuple({**self._direct, **self._written})

    def _chosen_direct(self, name: str) -> _Direct | None:
        """Returns the direct reading if it counts, or None if the status does."""
        direct, written = self._direct.get(name), self._written.get(name)
        if direct is None or direct.open or written is None:
            return direct
        written_at = written.status.observed_at
        limit = direct.taken_at - timedelta(seconds=SAME_MOMENT_SECONDS)
        return direct if written_at is None or written_at < limit else None

    def _learn(self, node: GPUNode) -> None:
        """Learns from a reading. `node` has the agent's own time, which identifies a new
        reading.
        """
        self.usage.observe(node, self._worker)
        self.program_faults.observe(node, self._worker)
