"""What keeps a simulated pod from starting, as kube-scheduler and kubelets say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpujob_api.codec import format_time
from gpujob_api.meta import LABEL_JOB
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.pods import attempt_of, gpus_of, is_foreign, wanted_node, worker_status

if TYPE_CHECKING:
    from tests.simulation.api_server import ApiServer, Manifest
    from tests.simulation.clock import Clock
    from tests.simulation.machines import Machine
    from tests.simulation.workloads import Workload

AGAIN_SECONDS = 5.0
# Later than any seed ends.
NEVER_SECONDS = 1e9
VOLUME_ELSEWHERE = "0/3 nodes are available: 1 node(s) had volume node affinity conflict."
# What kube-scheduler counts and the operator does not, in its words.
NO_FREE_PORTS = (
    "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, "
    "2 node(s) didn't match Pod's node affinity/selector."
)
TOO_MANY_PODS = (
    "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't match Pod's node affinity/selector."
)
NO_EXTENDED_RESOURCE = (
    "0/3 nodes are available: 1 Insufficient example.com/fabric, "
    "2 node(s) didn't match Pod's node affinity/selector."
)
# As a webhook's or another scheduler plugin's rule would have it.
NOT_BESIDE_ANOTHER = "0/3 nodes are available: 1 node(s) had a worker of the same gang."
SCHEDULER_WORDS = (NO_FREE_PORTS, TOO_MANY_PODS, NO_EXTENDED_RESOURCE)
UNSCHEDULABLE = "Unschedulable"
SCHEDULER_REASONS = (UNSCHEDULABLE, "SchedulerError", "", UNSCHEDULABLE)
NO_EXECUTABLE = 'exec: "gpujob-run": executable file not found in $PATH: unknown'


@dataclass(frozen=True, slots=True)
class HeldUp:
    """The status of a pod that does not start, and when the kubelet tries again; None: never."""

    status: dict[str, Any]
    again_seconds: float | None = AGAIN_SECONDS


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """What kube-scheduler says of a job's pods on these nodes, until then."""

    nodes: tuple[str, ...]
    words: str
    until: float = NEVER_SECONDS
    # kube-scheduler's reason; empty: it does not look at the pods at all.
    reason: str = UNSCHEDULABLE


class PodStarts:
    def __init__(
        self, clock: Clock, api: ApiServer, workload_of: Callable[[Manifest], Workload]
    ) -> None:
        self._clock = clock
        self._api = api
        self._workload_of = workload_of

    def scheduled(self, pod: Manifest, refusal: str) -> Manifest | None:
        """The pod's status after kube-scheduler looked at it; None where it did not."""
        own = self._workload_of(pod).refusal
        reason = own.reason if own is not None and refusal == own.words else UNSCHEDULABLE
        if refusal and not reason:
            return None
        refused = {"reason": reason, "message": refusal} if refusal else {}
        status = "False" if refusal else "True"
        since = format_time(self._clock.moment)
        return {"conditions": [self._condition(pod, "PodScheduled", status, since, **refused)]}

    def refusal(self, pod: Manifest) -> str:
        """Why kube-scheduler finds no node for the pod; empty where it does."""
        try:
            node = self._api.get(Kind.NODE, "", wanted_node(pod))
        except NotFound:
            return "node not found"
        if any(taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints") or ()):
            return "untolerated taint"
        if node["status"]["conditions"][0]["status"] != "True":
            return "node is not ready"
        workload = self._workload_of(pod)
        if workload.volume_nodes and wanted_node(pod) not in workload.volume_nodes:
            return VOLUME_ELSEWHERE
        if workload.one_on_a_node and self._has_another(wanted_node(pod), pod):
            return NOT_BESIDE_ANOTHER
        refusal = workload.refusal
        if refusal is None or self._clock.now >= refusal.until:
            return ""
        return refusal.words if wanted_node(pod) in refusal.nodes else ""

    def _has_another(self, node: str, pod: Manifest) -> bool:
        """Whether another worker of the pod's attempt is bound to the node."""
        return any(
            other["spec"].get("nodeName") == node
            and not is_foreign(other)
            and attempt_of(other) == attempt_of(pod)
            for other in self._api.list(Kind.POD)
        )

    def held_up(self, machine: Machine, pod: Manifest) -> HeldUp | None:
        """What the kubelet says of a pod that it cannot start now; None where it starts."""
        workload = self._workload_of(pod)
        if not set(gpus_of(pod)) <= machine.gpus.keys():
            waiting = self._waiting(machine, pod, "CreateContainerError", "unknown device")
            return HeldUp(waiting, None)
        now, image = self._clock.now, pod["metadata"]["labels"][LABEL_JOB]
        if machine.image_at(image, now, workload.pull_seconds) > now:
            return HeldUp(self._waiting(machine, pod, "ContainerCreating", ""))
        if workload.cannot_start and self._clock.now < workload.cannot_start_until:
            words = workload.cannot_start, 'secret "keys" not found'
            return HeldUp(self._waiting(machine, pod, *words))
        if not workload.has_executable:
            ended = {
                "exitCode": 128,
                "reason": "StartError",
                "message": NO_EXECUTABLE,
                "startedAt": "1970-01-01T00:00:00Z",
                "finishedAt": machine.time(self._clock.moment),
            }
            containers = [worker_status({"terminated": ended})]
            return HeldUp({"phase": "Failed", "containerStatuses": containers}, None)
        return None

    def _waiting(self, machine: Machine, pod: Manifest, reason: str, message: str) -> Manifest:
        waiting = {"waiting": {"reason": reason, "message": message}}
        there = ("PodScheduled", "PodReadyToStartContainers")
        since = machine.time(self._clock.moment)
        return {
            "conditions": [self._condition(pod, kind, "True", since) for kind in there],
            "containerStatuses": [worker_status(waiting)],
        }

    def _condition(
        self, pod: Manifest, kind: str, status: str, since: str, **words: str
    ) -> Manifest:
        for before in pod["status"].get("conditions") or ():
            if (before["type"], before["status"]) == (kind, status):
                since = before["lastTransitionTime"]
        return {"type": kind, "status": status, "lastTransitionTime": since, **words}
