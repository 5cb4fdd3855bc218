"""What the pods on each node ask for, and the nodes as decisions see them: with what is left."""

from dataclasses import dataclass

from gpujob_operator.decide.model.snapshot import NodeView
from gpujob_operator.read.nodes import CachedNode, with_pods
from gpujob_operator.read.pods import CachedPod


@dataclass(slots=True)
class _Use:
    cpu_milli: int = 0
    memory_bytes: int = 0


class NodeUse:
    """A node's view is the same object until the node or the pods on it change."""

    def __init__(self) -> None:
        # By the node's name.
        self._use: dict[str, _Use] = {}
        self._views: dict[str, NodeView] = {}

    def view(self, node: CachedNode) -> NodeView:
        name = node.empty.name
        view = self._views.get(name)
        if view is None:
            use = self._use.get(name, _Use())
            view = self._views[name] = with_pods(node, use.cpu_milli, use.memory_bytes)
        return view

    def pod_changed(self, before: CachedPod | None, after: CachedPod | None) -> None:
        for pod, sign in ((before, -1), (after, 1)):
            if pod is None or pod.node is None or pod.finished:
                continue
            use = self._use.setdefault(pod.node, _Use())
            use.cpu_milli += sign * pod.requests.cpu_milli
            use.memory_bytes += sign * pod.requests.memory_bytes
            self._views.pop(pod.node, None)

    def node_changed(self, *nodes: CachedNode | None) -> None:
        """The node before and after the change; None: it is not there."""
        for node in nodes:
            if node is not None:
                self._views.pop(node.empty.name, None)
