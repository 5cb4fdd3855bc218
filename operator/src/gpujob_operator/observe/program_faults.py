"""Errors of GPUs' drivers that programs met, by job. Which job's pod it was is known while the pod
is there, and from then on.

A new leader knows nothing of pods that are gone, and so believes less. Bounded by the nodes, by
what each of their readings can tell, and by the pods that are remembered.
"""

from collections import OrderedDict
from collections.abc import Callable

from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.model.snapshot import PodView, ProgramFault

PODS_REMEMBERED_MAX = 4096

# The worker pod with a UID, or None for an unmanaged one.
PodOf = Callable[[str], PodView | None]


class ProgramFaults:
    def __init__(self) -> None:
        self._by_node: dict[str, tuple[ProgramFault, ...]] = {}
        self._faults: tuple[ProgramFault, ...] | None = ()
        # Pods that met an error, and pods that went: their node, their job and its namespace.
        self._owners: OrderedDict[str, tuple[str, str, str]] = OrderedDict()

    def observe(self, node: GPUNode, pod_of: PodOf) -> None:
        """Takes in what a node's newest reading tells."""
        found: list[ProgramFault] = []
        for gpu in node.status.gpus:
            for event in gpu.xids:
                owner = self._owner(event.pod_uid or "", pod_of)
                # An agent may speak for the pods of its node only.
                if owner is not None and owner[0] == node.metadata.name:
                    found.append(ProgramFault(owner[0], gpu.uuid, event.xid, *owner[1:]))
        self._put(node.metadata.name, tuple(found))

    def remember(self, pod: PodView) -> None:
        """A worker pod that goes, of which a later reading may tell."""
        if pod.job_uid and pod.node is not None:
            self._keep(pod.uid, (pod.node, pod.job_uid, pod.namespace))

    def forget(self, node: str) -> None:
        self._put(node, ())

    def all(self) -> tuple[ProgramFault, ...]:
        """The same object until something changes."""
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
