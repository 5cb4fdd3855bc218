"""The Node objects of the simulated cluster, as cloud, kubelets and controllers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpujob_api.codec import format_time
from gpujob_api.meta import LABEL_MANAGED, LABEL_SPOT
from gpujob_operator.observe.cache import Kind
from tests.simulation.volumes import LABEL_NODE

if TYPE_CHECKING:
    from tests.simulation.api_server import ApiServer, Manifest
    from tests.simulation.clock import Clock
    from tests.simulation.machines import Machine


class NodeObjects:
    def __init__(self, clock: Clock, api: ApiServer) -> None:
        self._clock = clock
        self._api = api

    def create(self, machine: Machine) -> None:
        plan = machine.plan
        labels = {LABEL_NODE: plan.name, LABEL_SPOT: "true" if plan.spot else "false"}
        if machine.labelled:
            labels[LABEL_MANAGED] = "true"
        node = {
            "metadata": {"name": plan.name, "labels": labels},
            "spec": {},
            "status": {
                "allocatable": {"cpu": str(plan.cpu), "memory": "256Gi"},
                "conditions": [self._condition(ready=True)],
                "nodeInfo": {"machineID": _identity(machine)},
            },
        }
        self._api.create(Kind.NODE, node, "cloud")

    def say_ready(self, machine: Machine, *, ready: bool) -> None:
        self.patch(machine, {"status": {"conditions": [self._condition(ready=ready)]}})

    def label(self, machine: Machine) -> None:
        """With the label of managed nodes, or without it."""
        labels = {LABEL_MANAGED: "true" if machine.labelled else None}
        self.patch(machine, {"metadata": {"labels": labels}}, spec=True)

    def patch(self, machine: Machine, patch: dict[str, Any], *, spec: bool = False) -> None:
        self._api.patch(Kind.NODE, "", machine.name, patch, "node-controller", spec=spec)

    def remove(self, name: str) -> None:
        """With the GPUNode of that name."""
        for kind in (Kind.NODE, Kind.GPU_NODE):
            for manifest in self._api.list(kind):
                if manifest["metadata"]["name"] == name:
                    self._api.remove(kind, manifest["metadata"]["uid"], "cloud")

    def find(self, name: str) -> Manifest | None:
        nodes = self._api.list(Kind.NODE)
        return next((node for node in nodes if node["metadata"]["name"] == name), None)

    def is_of(self, machine: Machine) -> bool:
        """Whether there is a Node, and not that of another machine of the name."""
        node = self.find(machine.name)
        return node is not None and node["status"]["nodeInfo"]["machineID"] == _identity(machine)

    def _condition(self, *, ready: bool) -> Manifest:
        return {
            "type": "Ready",
            "status": "True" if ready else "Unknown",
            "lastTransitionTime": format_time(self._clock.moment),
        }


def _identity(machine: Machine) -> str:
    """Another machine of that name has other GPUs."""
    return min(machine.gpus)
