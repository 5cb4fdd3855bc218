"""What the incidents of a seed do: to nodes, GPUs, agents, pods, clocks and operators."""

from collections.abc import Sequence

from gpujob_api.manifest import gpujob_from_manifest
from gpujob_operator.decide.model.conditions import RUNNING, find
from gpujob_operator.observe.cache import Kind
from tests.simulation.agents import Lie
from tests.simulation.api_server import Manifest
from tests.simulation.clock import Clock
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults, Incident
from tests.simulation.machines import ABSURD_GPU, MISSING_GPU, Machine
from tests.simulation.operator_shell import OperatorShell
from tests.simulation.pods import is_foreign, is_live, of_service

# Somebody reads what jobs say, and helps, until then.
HELP_SECONDS = 6000.0
# Somebody who took a server's pod out of the operator's hands has no more use for it after this.
SERVERS_KEPT_SECONDS = 120.0
# Requests that are kept on their way: those of an attempt, and what is tried again.
LATE_PODS = 3


class Happenings:
    def __init__(
        self, clock: Clock, cluster: Cluster, shells: Sequence[OperatorShell], faults: Faults
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._api = cluster.api
        self._shells = shells
        self._faults = faults
        self._someone_reads = False

    def happen(self, incident: Incident) -> None:
        anywhere = {
            "pause": self._pause,
            "operator-killed": self._kill_operators,
            "operator-clock": self._set_operator_clock,
            "late-pods": self._delay_pods,
            "restore": self._api.restore,
            "pod-deleted": self._delete_a_pod,
            "pod-evicted": self._evict_a_pod,
            "pod-evicted-softly": self._evict_softly,
            "pod-drained": self._drain_a_pod,
            "finished-collected": self._collect_finished,
            "owner-lost": self._strip_owners,
            "collector-away": self._stop_collecting,
        }
        if incident.what in anywhere:
            anywhere[incident.what](incident.seconds)
            return
        machine = self._cluster.machines[incident.node]
        if not machine.gone:
            self._happen_to(machine, incident)

    # -- operators and pods

    def _pause(self, seconds: float) -> None:
        if self._shells:
            self._shells[0].pause(min(seconds, 40.0))

    def _kill_operators(self, _: float) -> None:
        for shell in self._shells:
            shell.crash()

    def _set_operator_clock(self, seconds: float) -> None:
        """The wall clock of one of them jumps. Those that start later find it so."""
        self._faults.operator_clock_error_seconds = seconds
        if self._shells:
            self._shells[0].clock_error_seconds = seconds

    def _delay_pods(self, seconds: float) -> None:
        """The network keeps the next requests for pods, and delivers them after all."""
        self._faults.late_pods.extend([seconds] * LATE_PODS)

    def _delete_a_pod(self, _: float) -> None:
        pods = self._api.list(Kind.POD)
        if pods:
            self._cluster.delete_pod(self._clock.random.choice(pods), "user")

    def _evict_a_pod(self, _: float) -> None:
        """Its kubelet lacks room on the disk."""
        running = [one for m in self._cluster.machines.values() for one in m.workers.values()]
        if running:
            self._clock.random.choice(running).evict()

    def _evict_softly(self, seconds: float) -> None:
        """Its kubelet runs short of something, and leaves it time to save."""
        running = [one for m in self._cluster.machines.values() for one in m.workers.values()]
        if running:
            self._cluster.evict_softly(self._clock.random.choice(running), seconds)

    def _drain_a_pod(self, _: float) -> None:
        """By the eviction API, or by kube-scheduler for another pod."""
        running = [pod for pod in self._api.list(Kind.POD) if is_live(pod) and not is_foreign(pod)]
        if running:
            by = self._clock.random.choice(
                [("drain", "EvictionByEvictionAPI"), ("scheduler", "PreemptionByScheduler")]
            )
            self._cluster.take_away(self._clock.random.choice(running), *by)

    def _collect_finished(self, _: float) -> None:
        self._cluster.collect_finished()

    def _stop_collecting(self, _: float) -> None:
        self._cluster.collects = False

    def _strip_owners(self, _: float) -> None:
        """Somebody edits the pods: no garbage collector will ever know whose they are.

        A training ends by itself. A server would hold its GPU for ever, so its pod is deleted.
        """
        servers: list[Manifest] = []
        for pod in self._api.list(Kind.POD):
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            patch = {"metadata": {"ownerReferences": None}}
            self._api.patch(Kind.POD, namespace, name, patch, "user", spec=True)
            if of_service(pod):
                servers.append(pod)
        self._clock.after(SERVERS_KEPT_SECONDS, lambda: self._delete(servers))
        if not self._someone_reads:
            self._someone_reads = True
            self._clock.every(60.0, self._delete_what_is_in_the_way)

    def _delete_what_is_in_the_way(self) -> bool:
        """Somebody reads what the jobs say of pods that lost their owner before they were seen."""
        for job in map(gpujob_from_manifest, self._api.list(Kind.JOB)):
            found = find(job.status, RUNNING)
            if found is None or found.reason != "PodNameTaken":
                continue
            for pod in self._api.list(Kind.POD):
                metadata = pod["metadata"]
                if f"{metadata['namespace']}/{metadata['name']}" in found.message:
                    self._cluster.delete_pod(pod, "user")
        return self._clock.now < HELP_SECONDS

    def _delete(self, pods: Sequence[Manifest]) -> None:
        for pod in pods:
            self._cluster.delete_pod(pod, "user")

    # -- nodes

    def _happen_to(self, machine: Machine, incident: Incident) -> None:
        seconds = incident.seconds
        match incident.what:
            case "power" | "partition":
                if machine.connected:
                    power_off = incident.what == "power"
                    self._cluster.disconnect(machine, seconds, power_off=power_off)
            case "reclaim" | "destroy":
                if incident.what == "reclaim":
                    self._cluster.reclaim(machine, seconds)
                else:
                    self._cluster.destroy(machine)
                self._clock.after(seconds + 40, lambda: self._replace(machine))
            case "agent":
                machine.agent_runs = False
                self._clock.after(seconds, lambda: setattr(machine, "agent_runs", True))
            case "agent-lies":
                machine.lie = self._clock.random.choice(list(Lie))
                machine.has_exaggerated |= machine.lie is Lie.LARGE
                # A pod of no node yet may come to this one.
                machine.has_blamed_pods |= machine.lie in (Lie.LARGE, Lie.PODS_OF_OTHERS)
                self._clock.after(seconds, lambda: setattr(machine, "lie", None))
            case "label-removed":
                self._cluster.label(machine, managed=False)
                self._clock.after(seconds, lambda: self._cluster.label(machine, managed=True))
            case "gpus-changed":
                self._cluster.change_gpus(machine)
            case "node-clock":
                machine.clock_error_seconds = seconds
            case _:
                self._happen_to_gpu(machine, incident)

    def _replace(self, machine: Machine) -> None:
        """Another machine of that name, with other GPUs."""
        if self._cluster.machines[machine.name] is machine and machine.gone:
            self._cluster.join(machine.plan)

    def _happen_to_gpu(self, machine: Machine, incident: Incident) -> None:
        gpu = self._clock.random.choice(list(machine.gpus.values()))
        if incident.what == "unmanaged":
            gpu.unmanaged_bytes = min(8 * 1024**3, max(0, machine.free_bytes(gpu.uuid)))
        elif incident.what == "unhealthy":
            gpu.healthy = False
        else:
            gpu.misread = MISSING_GPU if incident.what == "missing" else ABSURD_GPU

        def mend() -> None:
            gpu.unmanaged_bytes, gpu.healthy, gpu.misread = 0, True, ""

        self._clock.after(incident.seconds, mend)
