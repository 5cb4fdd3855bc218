"""What kubelets, kube-scheduler and the node controller do for the pods of GPUServices: addresses,
readiness, and the life of gates, which need no GPU and are started again.
"""

from collections.abc import Callable, Iterator, Mapping

from gpujob_api.codec import parse_time
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import AnyKind, ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.gate_process import GateProcess
from tests.simulation.machines import Machine
from tests.simulation.pods import is_gate, is_ready, of_service, with_readiness, worker_ended
from tests.simulation.requests import Network, address_of
from tests.simulation.server import Server

# As the product's pods have it (`render.gpuservice`, `render.gate`).
PROBE_SECONDS = 2.0
START_SECONDS_MAX = 3.0
AGAIN_SECONDS = 5.0


class ServicePods:
    """`gates` are the processes of gates, by the pod's UID."""

    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        machines: Mapping[str, Machine],
        network: Network,
        start_gate: Callable[[Machine, Manifest], GateProcess],
    ) -> None:
        self._clock = clock
        self._api = api
        self._machines = machines
        self._network = network
        self._start_gate = start_gate
        self.gates: dict[str, GateProcess] = {}
        # Gates whose containers start soon.
        self._starting: set[str] = set()
        api.watchers.append(self._watch)
        clock.every(PROBE_SECONDS, self._probe)
        clock.every(1.0, self._keep_gates)

    def _watch(self, kind: AnyKind, event_type: str, manifest: Manifest) -> None:
        if kind is Kind.POD and event_type == "ADDED" and is_gate(manifest):
            self._bind_later(manifest["metadata"]["uid"], self._clock.random.uniform(0.1, 1.0))

    # -- readiness

    def _probe(self) -> bool:
        for pod in self._pods():
            name = pod["spec"].get("nodeName")
            if name is None or worker_ended(pod) is not None:
                continue
            process, machine = self._process_of(pod), self._machines.get(name)
            if machine is not None and machine.connected and machine.powered:
                if process is not None:
                    self._say(pod, ready=process.is_ready)
            elif not self._node_is_ready(name):
                self._say(pod, ready=False)
        return True

    def _process_of(self, pod: Manifest) -> Server | GateProcess | None:
        uid = pod["metadata"]["uid"]
        if is_gate(pod):
            return self.gates.get(uid)
        machine = self._machines.get(pod["spec"].get("nodeName", ""))
        worker = machine.workers.get(uid) if machine is not None else None
        if isinstance(worker, Server):
            self._network.listening[address_of(pod)] = worker
            return worker
        return None

    def _say(self, pod: Manifest, *, ready: bool) -> None:
        if is_ready(pod) == ready and "podIPs" in pod["status"]:
            return
        address = address_of(pod)
        status = {**with_readiness(pod, ready=ready), "podIPs": [{"ip": address}]}
        self._patch(pod, {"status": status})

    def _node_is_ready(self, name: str) -> bool:
        try:
            node = self._api.get(Kind.NODE, "", name)
        except NotFound:
            return False
        return node["status"]["conditions"][0]["status"] == "True"

    # -- gates

    def _bind_later(self, uid: str, seconds: float) -> None:
        self._clock.after(seconds, lambda: self._bind(uid))

    def _bind(self, uid: str) -> None:
        pod = self._api.find(Kind.POD, uid)
        if pod is None or "nodeName" in pod["spec"]:
            return
        nodes = [
            node["metadata"]["name"]
            for node in self._api.list(Kind.NODE)
            if self._node_is_ready(node["metadata"]["name"]) and not node["spec"].get("taints")
        ]
        if not nodes:
            self._bind_later(uid, AGAIN_SECONDS)
            return
        name = self._clock.random.choice(nodes)
        self._patch(pod, {"spec": {"nodeName": name}}, spec=True)

    def _keep_gates(self) -> bool:
        there: set[str] = set()
        for pod in self._pods():
            if is_gate(pod) and "nodeName" in pod["spec"]:
                there.add(pod["metadata"]["uid"])
                self._keep(pod)
        for uid, process in list(self.gates.items()):
            machine = process.machine
            is_cut = not machine.powered or machine.gone
            if process.ended or is_cut or (machine.connected and uid not in there):
                process.kill()
                del self.gates[uid]
        return True

    def _keep(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        machine = self._machines.get(pod["spec"]["nodeName"])
        if machine is None or not (machine.powered and machine.connected):
            return
        process = self.gates.get(uid)
        if process is not None and process.machine is not machine:
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod, process)
        elif process is None and uid not in self._starting:
            self._starting.add(uid)
            seconds = self._clock.random.uniform(0.3, START_SECONDS_MAX)
            self._clock.after(seconds, lambda: self._start(machine, uid))

    def _end(self, pod: Manifest, process: GateProcess | None) -> None:
        """SIGTERM now, SIGKILL at the deadline; the object goes when the process is gone."""
        late = self._clock.moment >= parse_time(pod["metadata"]["deletionTimestamp"])
        if process is not None and not (process.ended or late):
            process.terminate()
            return
        if process is not None:
            process.kill()
        self._api.remove(Kind.POD, pod["metadata"]["uid"], "kubelet")

    def _start(self, machine: Machine, uid: str) -> None:
        self._starting.discard(uid)
        pod = self._api.find(Kind.POD, uid)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        if not (machine.powered and machine.connected) or machine.gone or uid in self.gates:
            return
        process = self.gates[uid] = self._start_gate(machine, pod)
        self._network.listening[address_of(pod)] = process
        self._patch(pod, {"status": {"phase": "Running"}})

    def _pods(self) -> Iterator[Manifest]:
        return (pod for pod in self._api.list(Kind.POD) if of_service(pod))

    def _patch(self, pod: Manifest, patch: Manifest, *, spec: bool = False) -> None:
        metadata = pod["metadata"]
        key = metadata["namespace"], metadata["name"]
        self._api.patch(Kind.POD, *key, patch, "kubelet", spec=spec)
