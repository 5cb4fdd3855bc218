"""Nodes, kubelets, scheduler and garbage collection of the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from gpujob_api.codec import parse_time
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.settings import EXIT_DONE
from gpujob_operator.client.api_errors import Conflict, NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.agents import Agents
from tests.simulation.api_server import AnyKind, ApiServer, Manifest, OtherKind
from tests.simulation.machines import Machine, PhysicalGPU
from tests.simulation.node_objects import NodeObjects
from tests.simulation.pod_starts import PodStarts
from tests.simulation.pods import (
    FINAL,
    SIDECAR,
    disruption,
    has_sidecar,
    is_foreign,
    is_gate,
    is_marked,
    is_ready,
    wanted_node,
    with_readiness,
    worker_ended,
    worker_status,
)

if TYPE_CHECKING:
    from tests.simulation.clock import Clock
    from tests.simulation.operator_shell import OperatorShell
    from tests.simulation.worker import Worker
    from tests.simulation.workloads import NodePlan, Workload

# Whose dependents the garbage collector takes away, by the kind in owner references.
_OWNERS = {"GPUJob": Kind.JOB, "GPUService": Kind.SERVICE}
NOT_READY_AFTER_SECONDS = 10.0
EVICTED_AFTER_SECONDS = 60.0
ABSENT_OWNER_SECONDS = 5.0


class Cluster:
    """Everything of the cluster but the operator; its controllers see the API without delay."""

    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        start_worker: Any,
        workload_of: Callable[[Manifest], Workload],
        shells: Sequence[OperatorShell],
        connection_breaks: Callable[[], bool],
    ) -> None:
        self.clock = clock
        self.api = api
        self.machines: dict[str, Machine] = {}
        # Whether the garbage collector does its work.
        self.collects = True
        # Of which jobs the pods are looked for soon.
        self._collecting: set[str] = set()
        # Workers that took their last step, whatever became of their pods: the job's UID, the
        # attempt and the rank.
        self.done: set[tuple[str, int, int]] = set()
        self._start_worker = start_worker
        self._nodes = NodeObjects(clock, api)
        self._starts = PodStarts(clock, api, workload_of)
        self.agents = Agents(clock, api, self.machines, shells, connection_breaks)
        api.watchers.append(self._watch)
        api.restored.append(self._restored)

    def join(self, plan: NodePlan) -> Machine:
        """A node with its agent. A node of the same name that comes later has other GPUs."""
        count = sum(1 for m in self.machines if m.split("~")[0] == plan.name)
        is_left = self._nodes.find(plan.name) is not None
        self._nodes.remove(plan.name)
        if plan.name in self.machines:
            self.machines[f"{plan.name}~{count}"] = self.machines.pop(plan.name)
        gpus = {
            f"GPU-{plan.name}-{count}-{n}": PhysicalGPU(
                f"GPU-{plan.name}-{count}-{n}", plan.card_bytes, plan.driver_bytes
            )
            for n in range(plan.gpus)
        }
        machine = Machine(plan.name, plan, gpus)
        self.machines[plan.name] = machine
        self._nodes.create(machine)
        self.agents.join(machine)
        if is_left:
            self._take_over(machine)
        return machine

    def change_gpus(self, machine: Machine) -> None:
        """Somebody puts other cards in. Pods are as they were, and what they run waits for ever."""
        for worker in machine.workers.values():
            worker.lost_gpus = True
        machine.gpus = {
            f"{uuid}-new": PhysicalGPU(f"{uuid}-new", gpu.total_bytes, gpu.driver_bytes)
            for uuid, gpu in machine.gpus.items()
        }

    def label(self, machine: Machine, *, managed: bool) -> None:
        """Somebody labels the node, or removes the label. The agent comes and goes with it."""
        machine.labelled = machine.agent_runs = managed
        if not machine.gone:
            self._nodes.label(machine)

    # -- the watch of scheduler, kubelets and garbage collector

    def _watch(self, kind: AnyKind, event_type: str, manifest: Manifest) -> None:
        random = self.clock.random
        metadata = manifest["metadata"]
        if event_type == "ADDED" and kind in (Kind.POD, Kind.JOB, OtherKind.SERVICE):
            # It may have come so late that its owner is gone.
            self._collect_without_owner(manifest)
        if kind is Kind.POD and is_gate(manifest):
            # See `GatePods`.
            return
        if kind is Kind.POD and is_foreign(manifest):
            self._foreign(event_type, metadata)
        elif kind is Kind.POD and event_type == "ADDED":
            self.clock.after(random.uniform(0.1, 1.0), lambda: self._bind(metadata["uid"]))
        elif kind is Kind.POD and event_type == "MODIFIED" and "deletionTimestamp" in metadata:
            self.clock.after(random.uniform(0.0, 0.3), lambda: self._terminate(metadata["uid"]))
        elif kind is Kind.POD and event_type == "DELETED":
            self._kill_removed(manifest)
        elif kind in _OWNERS.values() and event_type == "DELETED":
            delay = random.uniform(0.2, 5.0)
            self._collect_after(delay, metadata["uid"])

    def _foreign(self, event_type: str, metadata: Manifest) -> None:
        """Its container ends at once when it is asked to."""
        if event_type == "MODIFIED" and "deletionTimestamp" in metadata:
            self.clock.after(0.5, lambda: self._end_foreign(metadata["uid"]))

    def _end_foreign(self, uid: str) -> None:
        """Its kubelet says that it has ended, whoever keeps the object."""
        pod = self.api.find(Kind.POD, uid)
        if pod is not None and pod["status"].get("phase") == "Running":
            state = {"terminated": {"exitCode": 137, "reason": "Error"}}
            self._pod_status(pod, {"phase": "Failed", "containerStatuses": [worker_status(state)]})
        self._remove(uid)

    def _collect_after(self, seconds: float, job_uid: str) -> None:
        """Once at a time for each job, however many pods a finalizer keeps."""
        if job_uid not in self._collecting:
            self._collecting.add(job_uid)
            self.clock.after(seconds, lambda: self._collect(job_uid))

    def _collect(self, job_uid: str) -> None:
        """Background deletion of what the job or the service owned; looks again for what was
        created late."""
        self._collecting.discard(job_uid)
        if not self.collects:
            return
        for job in self.api.list(Kind.JOB):
            owners = job["metadata"].get("ownerReferences") or ()
            if any(one["uid"] == job_uid for one in owners):
                self.api.remove(Kind.JOB, job["metadata"]["uid"], "garbage-collector")
                self._collect_after(20.0, job_uid)
        for service in self.api.list(OtherKind.SERVICE):
            if any(one["uid"] == job_uid for one in service["metadata"].get("ownerReferences", ())):
                self.api.remove(OtherKind.SERVICE, service["metadata"]["uid"], "garbage-collector")
        for pod in self.api.list(Kind.POD):
            owners = pod["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == job_uid for owner in owners):
                self.delete_pod(pod, "garbage-collector")
                self._collect_after(20.0, job_uid)

    def delete_pod(self, pod: Manifest, by: str, grace: float | None = None) -> None:
        metadata = pod["metadata"]
        try:
            self.api.delete(
                Kind.POD, metadata["namespace"], metadata["name"], by, uid=metadata["uid"],
                grace=grace,
            )  # fmt: skip
        except (NotFound, Conflict):
            return

    # -- scheduler

    def _bind(self, uid: str) -> None:
        pod = self.api.find(Kind.POD, uid)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        refusal = self._starts.refusal(pod)
        said = self._starts.scheduled(pod, refusal)
        if said is not None:
            self._pod_status(pod, said)
        if refusal:
            self.clock.after(5.0, lambda: self._bind(uid))
            return
        name = wanted_node(pod)
        bound = self._patch_pod(pod, {"spec": {"nodeName": name}}, spec=True)
        if bound is not None:
            seconds = self.clock.random.uniform(0.3, 3.0)
            self.clock.after(seconds, lambda: self._start(uid))

    # -- kubelet

    def _start(self, uid: str) -> None:
        pod = self.api.find(Kind.POD, uid)
        if pod is None or pod["status"]["phase"] != "Pending":
            return
        # A restore may have lost that the pod was bound.
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        if machine is None or machine.gone:
            return
        if not (machine.powered and machine.connected):
            self.clock.after(5.0, lambda: self._start(uid))
            return
        if "deletionTimestamp" in pod["metadata"]:
            self.api.remove(Kind.POD, uid, "kubelet")
            return
        runs = uid in machine.workers
        held_up = None if runs else self._starts.held_up(machine, pod)
        if held_up is not None:
            self._pod_status(pod, held_up.status)
            if held_up.again_seconds is not None:
                self.clock.after(held_up.again_seconds, lambda: self._start(uid))
            return
        if not runs:
            machine.workers[uid] = self._start_worker(self, machine, pod)
        started = {"running": {"startedAt": machine.time(self.clock.moment)}}
        self._pod_status(pod, {"phase": "Running", "containerStatuses": [worker_status(started)]})

    def _terminate(self, uid: str) -> None:
        """SIGTERM now, SIGKILL at the deadline; the object goes when the process is gone."""
        pod = self.api.find(Kind.POD, uid)
        # A restore may have lost the request to delete it.
        if pod is None or "deletionTimestamp" not in pod["metadata"]:
            return
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        if machine is None or machine.gone or not (machine.powered and machine.connected):
            return
        worker = machine.workers.get(uid)
        if worker is None:
            if pod["status"]["phase"] == "Pending":
                self.clock.after(0.5, lambda: self._start(uid))
            else:
                self.api.remove(Kind.POD, uid, "kubelet")
            return
        deadline = parse_time(pod["metadata"]["deletionTimestamp"])
        left = (deadline - self.clock.moment).total_seconds()
        worker.terminate()
        self.clock.after(left, lambda: worker.kill_if_asked(deadline))

    def ended(self, worker: Worker, status: dict[str, Any], phase: str, reason: str = "") -> None:
        """The kubelet reports the end of a process, when it is connected again at the latest."""
        machine = worker.machine
        machine.workers.pop(worker.pod_uid, None)
        if status["exitCode"] == EXIT_DONE and worker.is_done:
            self.done.add((worker.job_uid, worker.attempt, worker.rank))
        if machine.gone or not machine.powered:
            return
        if not machine.connected:
            machine.unsaid.add(worker.pod_uid)
            self.clock.after(3.0, lambda: self.ended(worker, status, phase, reason))
            return
        machine.unsaid.discard(worker.pod_uid)
        pod = self.api.find(Kind.POD, worker.pod_uid)
        if pod is None:
            return
        ended = {**status, "finishedAt": machine.time(self.clock.moment)}
        containers = [worker_status({"terminated": ended})]
        if has_sidecar(pod) and not is_marked(pod):
            # A container that knows nothing of the worker's end keeps the pod as it is.
            phase = "Running"
            containers.append({"name": SIDECAR, "state": {"running": {}}})
        said: dict[str, Any] = {"reason": reason} if reason else {}
        if is_ready(pod):
            said |= with_readiness(pod, ready=False)
        if pod["status"].get("reason") == "Evicted" and self.clock.random.random() < 0.5:
            # Before Kubernetes 1.27 whatever its worker ended with, and after it where that failed.
            phase = "Failed"
        pod = self._pod_status(pod, {"phase": phase, "containerStatuses": containers, **said})
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            uid = worker.pod_uid
            # Often so soon that no decision comes between.
            seconds = max(0.0, self.clock.random.uniform(-0.5, 0.5))
            self.clock.after(seconds, lambda: self._remove(uid))

    def evict_softly(self, worker: Worker, grace_seconds: float) -> None:
        """The kubelet ends a pod for its node's sake: it says so first, then sends SIGTERM."""
        pod = self.api.find(Kind.POD, worker.pod_uid)
        machine = worker.machine
        if pod is None or not machine.connected or worker.ended:
            return
        words = "The node was low on resource: ephemeral-storage."
        told = {**disruption("TerminationByKubelet", words), "reason": "Evicted", "message": words}
        self._pod_status(pod, told)
        worker.terminate()
        deadline = self.clock.moment + timedelta(seconds=grace_seconds)
        self.clock.after(grace_seconds, lambda: worker.kill_if_asked(deadline))

    def take_away(self, pod: Manifest, by: str, reason: str) -> None:
        """Somebody of Kubernetes says why, and deletes the pod a moment later."""
        self._pod_status(pod, disruption(reason, f"{by} ends it"))
        seconds = self.clock.random.uniform(0.0, 0.5)
        self.clock.after(seconds, lambda: self.delete_pod(pod, by))

    def collect_finished(self) -> None:
        """There are too many finished pods, or somebody tidies up."""
        for pod in self.api.list(Kind.POD):
            if pod["status"]["phase"] in FINAL and not is_foreign(pod):
                self.api.remove(Kind.POD, pod["metadata"]["uid"], "pod-gc")

    def _remove(self, uid: str) -> None:
        if self.api.find(Kind.POD, uid) is not None:
            self.api.remove(Kind.POD, uid, "kubelet")

    def _kill_removed(self, pod: Manifest) -> None:
        """A pod that was removed by force: its kubelet kills it as soon as it hears of that."""
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        if machine is not None and machine.connected:
            worker = machine.workers.pop(pod["metadata"]["uid"], None)
            if worker is not None:
                worker.vanish()

    def _pod_status(self, pod: Manifest, status: dict[str, Any]) -> Manifest | None:
        return self._patch_pod(pod, {"status": status}, spec=False)

    def _patch_pod(self, pod: Manifest, patch: dict[str, Any], *, spec: bool) -> Manifest | None:
        metadata = pod["metadata"]
        current = self.api.find(Kind.POD, metadata["uid"])
        if current is None:
            return None
        return self.api.patch(
            Kind.POD, metadata["namespace"], metadata["name"], patch, "kubelet", spec=spec
        )

    # -- nodes that come and go

    def disconnect(self, machine: Machine, seconds: float, *, power_off: bool) -> None:
        """No word from the node for a while; without power its processes are gone as well."""
        machine.connected = False
        if power_off:
            machine.powered = False
            for worker in list(machine.workers.values()):
                worker.vanish()
            machine.workers.clear()
            machine.unsaid.clear()
        self.clock.after(NOT_READY_AFTER_SECONDS, lambda: self._not_ready(machine))
        self.clock.after(EVICTED_AFTER_SECONDS, lambda: self._evict(machine))
        self.clock.after(seconds, lambda: self._reconnect(machine))

    def _reconnect(self, machine: Machine) -> None:
        if machine.gone:
            return
        machine.connected = machine.powered = True
        self._nodes.say_ready(machine, ready=True)
        self._compare(machine)

    def _compare(self, machine: Machine) -> None:
        """The kubelet compares its processes with the pods of its node."""
        for pod in self.api.list(Kind.POD):
            if pod["spec"].get("nodeName") != machine.name or is_foreign(pod):
                continue
            uid = pod["metadata"]["uid"]
            if uid in machine.unsaid:
                continue
            if uid in machine.workers:
                if "deletionTimestamp" in pod["metadata"]:
                    self._terminate(uid)
            elif "deletionTimestamp" in pod["metadata"]:
                self.api.remove(Kind.POD, uid, "kubelet")
            elif pod["status"]["phase"] == "Running" and not worker_ended(pod):
                lost = {"exitCode": 137, "reason": "ContainerStatusUnknown"}
                containers = [worker_status({"terminated": lost})]
                self._pod_status(pod, {"phase": "Failed", "containerStatuses": containers})
        # A pod whose binding was lost with restored data is no pod of this node.
        pods = self.api.list(Kind.POD)
        known = {
            pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == machine.name
        }
        for uid in machine.workers.keys() - known:
            machine.workers.pop(uid).vanish()

    # -- data that were restored

    def _restored(self) -> None:
        """Scheduler, kubelets and agents find an older state, and go on from it: pods that are gone
        again are killed, and those that are there again and ran are found dead."""
        for machine in list(self.machines.values()):
            machine.published = (float("-inf"), None)
            if self.machines[machine.name] is machine:
                self._restored_node(machine)
        for pod in self.api.list(Kind.POD):
            self._again(pod)
        for kind in (Kind.POD, Kind.JOB):
            for manifest in self.api.list(kind):
                self._collect_without_owner(manifest)

    def _collect_without_owner(self, manifest: Manifest) -> None:
        for owner in manifest["metadata"].get("ownerReferences") or ():
            if self.api.find(_OWNERS[owner["kind"]], owner["uid"]) is None:
                self._collect_after(ABSENT_OWNER_SECONDS, owner["uid"])

    def _restored_node(self, machine: Machine) -> None:
        """The cloud takes the objects of a node away that is gone; kubelets make theirs anew."""
        if machine.gone:
            seconds = self.clock.random.uniform(1.0, 10.0)
            self.clock.after(seconds, lambda: self._forget(machine))
            return
        if not self._nodes.is_of(machine):
            self._nodes.remove(machine.name)
            self._nodes.create(machine)
            self.agents.register(machine)
        self._nodes.label(machine)
        if machine.leaves is not None:
            # Whoever announces the end asks the cloud again and again.
            self._nodes.patch(machine, machine.leaves, spec=True)
        if machine.connected:
            self._nodes.say_ready(machine, ready=True)
            self._compare(machine)
            return
        self.clock.after(NOT_READY_AFTER_SECONDS, lambda: self._not_ready(machine))
        self.clock.after(EVICTED_AFTER_SECONDS, lambda: self._evict(machine))

    def _again(self, pod: Manifest) -> None:
        if pod["status"]["phase"] == "Pending" and not is_foreign(pod):
            look = self._start if pod["spec"].get("nodeName") else self._bind
            uid = pod["metadata"]["uid"]
            self.clock.after(self.clock.random.uniform(0.5, 3.0), partial(look, uid))

    def _take_over(self, machine: Machine) -> None:
        """Pods are left there of a node of that name that is gone."""
        self._compare(machine)
        for pod in self.api.list(Kind.POD):
            if pod["spec"].get("nodeName") == machine.name:
                self._again(pod)

    def _forget(self, machine: Machine) -> None:
        """The objects of a node that is gone, and that are there again, go, and so do its pods."""
        if machine.gone and self.machines[machine.name] is machine:
            self._nodes.remove(machine.name)
            self._collect_pods_of(machine)

    # -- nodes that are lost

    def _not_ready(self, machine: Machine) -> None:
        if not machine.connected and not machine.gone:
            self._nodes.say_ready(machine, ready=False)

    def _evict(self, machine: Machine) -> None:
        if machine.connected or machine.gone:
            return
        for pod in self.api.list(Kind.POD):
            if pod["spec"].get("nodeName") == machine.name:
                self.take_away(pod, "taint-manager", "DeletionByTaintManager")

    def reclaim(self, machine: Machine, notice_seconds: float) -> None:
        """A taint with the deadline, SIGTERM shortly before it, then the node is no more."""
        deadline = int((self.clock.moment + timedelta(seconds=notice_seconds)).timestamp())
        taint = {"key": TAINT_RECLAIM, "effect": "NoSchedule", "value": str(deadline)}
        machine.leaves = {"spec": {"taints": [taint]}}
        self._nodes.patch(machine, machine.leaves, spec=True)
        self.clock.after(notice_seconds - 2, lambda: self._sigterm_all(machine))
        self.clock.after(notice_seconds, lambda: self.destroy(machine))

    def _sigterm_all(self, machine: Machine) -> None:
        for worker in list(machine.workers.values()):
            worker.terminate()

    def destroy(self, machine: Machine) -> None:
        if machine.gone:
            return
        machine.gone, machine.connected, machine.powered = True, False, False
        for worker in list(machine.workers.values()):
            worker.vanish()
        machine.workers.clear()
        self._nodes.remove(machine.name)
        self.clock.after(self.clock.random.uniform(2, 20), lambda: self._collect_pods_of(machine))

    def _collect_pods_of(self, machine: Machine) -> None:
        for pod in self.api.list(Kind.POD):
            if pod["spec"].get("nodeName") == machine.name and machine.gone:
                self.api.remove(Kind.POD, pod["metadata"]["uid"], "pod-gc")
