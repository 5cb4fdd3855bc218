"""The processes that are measured: a control plane, the operator, played nodes and agents."""

import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.played_agents import AGENT_ARGUMENT, readings_url, write_token
from bench.throughput.figures import Process, Series, read_series, total
from bench.throughput.kwok import kwok_command, node_manifest, node_names
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions
from gpujob_local.cluster.setup import AGENT_ACCOUNT, account_token
from gpujob_local.control_plane.api_client import ApiClient
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.control_plane.ports import free_port
from gpujob_local.control_plane.tools import find_tools
from gpujob_local.processes.processes import MARKER, Child, start_child, stop_child

REQUESTS_TOTAL = "apiserver_request_total"
AGENT_CONNECTIONS = "gpujob_agent_connections"
OPERATOR_SERIES = (
    "gpujob_cycle_seconds_bucket",
    "gpujob_cycle_seconds_count",
    "gpujob_cycle_seconds_sum",
    "gpujob_placements_total",
    "gpujob_writes_total",
)
# Beside the control plane's own.
PARTS = ("operator", "kueue", "kwok", "agents")
# Processes that stand for nodes: what they take is not the control plane's.
PLAYED = frozenset({"kwok", "agents", "bench"})
# A pod's grace period.
STOP_SECONDS = 30.0
Say = Callable[[str], None]
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1024**2


@dataclass(slots=True)
class Stack:
    """A cluster of played nodes. The operator and the agents are started and stopped on top."""

    cluster: LocalCluster
    nodes: int
    gpus: int
    operator_arguments: tuple[str, ...] = ()
    # Agents send their readings to the operator, or write them into the status.
    direct: bool = True
    # A pod succeeds as soon as it runs, or runs until it is deleted.
    pods_end: bool = True
    _metrics_port: int = 0
    # What processes had taken, and operators had counted, that were killed since.
    _ended: dict[str, Process] = field(default_factory=dict[str, Process])
    _counted: Series = field(default_factory=Series)

    @property
    def client(self) -> ApiClient:
        return self.cluster.client()

    def start_nodes(self) -> None:
        binary = find_tools("kwok")["kwok"]
        folder = self.cluster.directory
        self.start_part(
            "kwok", kwok_command(binary, self.cluster.kubeconfig, folder, pods_end=self.pods_end)
        )
        client = self.client
        for name in node_names(self.nodes):
            client.create("/api/v1/nodes", node_manifest(name, self.gpus))

    def ready_nodes(self) -> int:
        items = self.client.get("/api/v1/nodes", resourceVersion="0")["items"]
        return sum(_is_ready(item) for item in items)

    def start_agents(self) -> None:
        """After the operator, whose address they need."""
        kubeconfig = self.cluster.directory / "agents.kubeconfig"
        token = account_token(self.client, AGENT_ACCOUNT)
        self.cluster.control_plane.token_identity(token).write_kubeconfig(kubeconfig)
        command = [sys.executable, "-m", "bench.throughput.agents"]
        command += [f"--kubeconfig={kubeconfig}", f"--nodes={self.nodes}", f"--gpus={self.gpus}"]
        if self.direct:
            url = readings_url(self.cluster.children["operator"].log)
            command += [f"--readings-url={url}", f"--tokens={self._write_tokens()}"]
        self.start_part("agents", command)

    def _write_tokens(self) -> Path:
        folder, client = self.cluster.directory / "agent-tokens", self.client
        folder.mkdir(mode=0o700)
        for node in node_names(self.nodes):
            write_token(client, node, folder)
        return folder

    def measured_nodes(self) -> int:
        items = self.client.get("/apis/gpujob.dev/v1alpha1/gpunodes", resourceVersion="0")["items"]
        return sum(bool((item.get("status") or {}).get("gpus")) for item in items)

    def start_operator(self) -> None:
        """Returns when it holds its Lease."""
        self.cluster.start_operator(*self._arguments())

    def spawn_operator(self) -> None:
        """As `start_operator`, without a wait for the Lease."""
        self.cluster.spawn_operator("operator", *self._arguments())

    def _arguments(self) -> tuple[str, ...]:
        self._metrics_port = free_port()
        listen = f"--metrics-listen=127.0.0.1:{self._metrics_port}"
        return (listen, AGENT_ARGUMENT, *self.operator_arguments)

    def kill_operator(self) -> float:
        """SIGKILL. Returns when that was. What it had counted and taken right before stays in
        `operator_series` and `processes`, to which the next operator's are added.
        """
        self._counted = self.operator_series()
        self._ended["operator"] = self.processes()["operator"]
        killed_at = time.monotonic()
        self.cluster.kill_operator()
        return killed_at

    def stop_operator(self) -> None:
        """As a Deployment stops it. What it had taken stays in `processes`."""
        self._ended["operator"] = self.processes()["operator"]
        stop_child(self.cluster.children.pop("operator"), STOP_SECONDS)

    def operator_is_ready(self) -> bool:
        """True once it holds the Lease and has listed every kind."""
        try:
            self._operator_get("/readyz")
        except OSError:
            return False
        return True

    def has_decided(self) -> bool:
        """True once this operator has ended a cycle: there are none before it may act."""
        series = read_series(self._operator_get("/metrics"), OPERATOR_SERIES)
        return series.get(("gpujob_cycle_seconds_count", ()), 0.0) > 0

    def cycle_seconds(self) -> float:
        """The mean length of this operator's cycles so far."""
        series = read_series(self._operator_get("/metrics"), OPERATOR_SERIES)
        count = series.get(("gpujob_cycle_seconds_count", ()), 0.0)
        return series.get(("gpujob_cycle_seconds_sum", ()), 0.0) / max(count, 1.0)

    def connected_agents(self) -> int:
        """How many agents the operator that runs takes readings of directly."""
        series = read_series(self._operator_get("/metrics"), [AGENT_CONNECTIONS])
        return round(sum(series.values()))

    def has_pods(self, namespace: str) -> bool:
        """Asks for one of them, because there may be thousands."""
        return bool(self.client.get(f"/api/v1/namespaces/{namespace}/pods", limit="1")["items"])

    def forget_peaks(self) -> None:
        """Peaks of memory count from now on."""
        self._ended = {name: Process(one.cpu_seconds, 0.0) for name, one in self._ended.items()}
        for pid in self._pids().values():
            forget_peak(pid)

    def processes(self) -> dict[str, Process]:
        """CPU since each process's start, to a hundredth of a second, and its peak of memory; of
        one that took a killed one's place, the CPU of both and the higher peak.
        """
        found: dict[str, Process] = {}
        for name, pid in self._pids().items():
            ended = self._ended.get(name, Process(0.0, 0.0))
            peak = max(ended.peak_mib, peak_bytes(pid) / _MIB)
            found[name] = Process(ended.cpu_seconds + cpu_seconds(pid), peak)
        return found

    def resident_mib(self) -> dict[str, float]:
        """What each process holds in memory now."""
        return {name: resident_bytes(pid) / _MIB for name, pid in self._pids().items()}

    def operator_connections(self) -> int:
        """To the API server, now."""
        port = urlsplit(self.cluster.control_plane.server).port
        return connections_to(port or 0, self.cluster.children["operator"].pid)

    def _pids(self) -> dict[str, int]:
        children: dict[str, Child] = {**self.cluster.control_plane.children}
        children |= {
            name: self.cluster.children[name] for name in PARTS if name in self.cluster.children
        }
        return {name: child.pid for name, child in children.items()} | {"bench": os.getpid()}

    def requests(self) -> Series:
        return requests_so_far(self.client)

    def operator_series(self) -> Series:
        """What all operators counted together; empty without any."""
        if "operator" not in self.cluster.children:
            return self._counted
        series = read_series(self._operator_get("/metrics"), OPERATOR_SERIES)
        return total(self._counted, series)

    def check(self) -> None:
        """Raises `RuntimeError` with the end of its log where a process has ended."""
        parts = {**self.cluster.control_plane.children, **self.cluster.children}
        for name, child in parts.items():
            if not child.alive():
                raise RuntimeError(f"{name} ended:\n{child.log_tail()}")

    def _operator_get(self, path: str) -> str:
        return loopback_get(self._metrics_port, path)

    def start_part(self, name: str, command: list[str]) -> None:
        """Starts a process whose log is among the cluster's; one of `PARTS` is in the figures."""
        repository = Path(__file__).resolve().parents[2]
        environment = {
            MARKER: self.cluster.marker_value,
            "PATH": os.defpath,
            "HOME": str(self.cluster.directory),
            "LANG": "C.UTF-8",
        }
        log = self.cluster.directory / "logs" / f"{name}.log"
        child = start_child(name, command, environment, log, folder=repository)
        self.cluster.children[name] = child


def start_cluster(say: Say) -> LocalCluster:
    """A control plane with the CRDs, rights and policies of the product, and no node."""
    options = ClusterOptions(
        nodes=(),
        operator=False,
        # The product's defaults, and a disk that is waited for.
        operator_configuration={},
        operator_lease_seconds=15.0,
        control_plane=ControlPlaneOptions(node_grace_seconds=120, durable=True),
    )
    return LocalCluster.start(options, say=say)


def loopback_get(port: int, path: str) -> str:
    """What a server on this machine's loopback answers. Raises `OSError` for any other than 200."""
    # No proxy: it is on loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return response.read().decode()


def requests_so_far(client: ApiClient) -> Series:
    """What the API server has answered, by verb and kind."""
    text = client.request_bytes("GET", "/metrics").decode()
    return read_series(text, [REQUESTS_TOTAL])


def processes_between(
    before: Mapping[str, Process], after: Mapping[str, Process]
) -> dict[str, Process]:
    """CPU taken in between; memory as it is at the end."""
    return {
        name: Process(one.cpu_seconds - before[name].cpu_seconds, one.peak_mib)
        for name, one in after.items()
        if name in before
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def forget_peak(pid: int) -> None:
    """The peak of memory begins with what is in use now, where the kernel allows it."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    return _memory_bytes(pid, "VmHWM:")


def resident_bytes(pid: int) -> int:
    return _memory_bytes(pid, "VmRSS:")


def connections_to(port: int, pid: int) -> int:
    """TCP connections of the process to this port that are established."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    there = [one for one in found if one.raddr and one.status == psutil.CONN_ESTABLISHED]
    return sum(one.raddr.port == port for one in there)


def _memory_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _is_ready(node: Mapping[str, object]) -> bool:
    status = node.get("status")
    conditions = status.get("conditions") or () if isinstance(status, dict) else ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
