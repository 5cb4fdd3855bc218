"""A local cluster: a real control plane, process nodes with CPU cards, agents and the operator.

The command line, the demo and the tests use it. Everything it starts ends with the process that
owns the `LocalCluster`, even if that is killed.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from gpujob_local.cluster.checks import lease_holders, nodes_measured, nodes_ready
from gpujob_local.cluster.nodes import configure_node
from gpujob_local.cluster.options import OPERATOR_IMAGE, ClusterOptions, NodeOptions
from gpujob_local.cluster.programs import CPU_NVML, GPU_NVML, agent_command, operator_command
from gpujob_local.cluster.reclaim import announce_reclaim, ask_to_shut_down, delete_node
from gpujob_local.cluster.setup import (
    AGENT_ACCOUNT,
    OPERATOR_ACCOUNT,
    STORAGE_USER,
    SYSTEM_NAMESPACE,
    account_token,
    install_objects,
)
from gpujob_local.control_plane.api_client import ApiClient
from gpujob_local.control_plane.control_plane import ClusterError, ControlPlane
from gpujob_local.control_plane.ports import free_port
from gpujob_local.control_plane.tools import find_tools
from gpujob_local.gpus.cpu_cards import read_cards
from gpujob_local.gpus.cpu_nvml import CARDS_VARIABLE
from gpujob_local.gpus.driver import CUDA_DEVICES, driver_environment
from gpujob_local.gpus.node_nvml import GPUS_VARIABLE
from gpujob_local.processes.processes import (
    MARKER,
    Child,
    Watchdog,
    marked_processes,
    start_child,
    stop_child,
)

__all__ = ["ClusterError", "ClusterOptions", "LocalCluster", "NodeOptions"]

KUBECTL_LIMIT_SECONDS = 120.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Say = Callable[[str], None]


def _silent(_text: str) -> None:
    return None


class LocalCluster:
    """A cluster. `start` makes one that is ready; use it as a context manager, or call `stop`.

    Its methods block. They may be called from any thread, one at a time.
    """

    def __init__(self, options: ClusterOptions, directory: Path | None, say: Say) -> None:
        self.options = options
        self.marker_value = f"cluster-{secrets.token_hex(8)}"
        self.directory = directory or Path(tempfile.mkdtemp(prefix="gpujob-local-"))
        self.children: dict[str, Child] = {}
        self._say = say
        self._watchdog = Watchdog(self.marker_value, self.directory)
        self._binaries: dict[str, Path] = {}
        self._node_options = {node.name: node for node in options.nodes}
        self._networks = secrets.randbelow(190) + 2
        self._operators = 0
        self._report_ports: dict[str, int] = {}

    @classmethod
    def start(
        cls,
        options: ClusterOptions | None = None,
        directory: Path | None = None,
        say: Say = _silent,
    ) -> "LocalCluster":
        """Returns a cluster that is ready. If that fails, raises `ClusterError` or `ToolError` and
        leaves nothing behind.
        """
        binaries = find_tools()
        cluster = cls(options or ClusterOptions(), directory, say)
        try:
            cluster._start(binaries)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # The cluster as a whole

    def _start(self, binaries: dict[str, Path]) -> None:
        began = time.monotonic()
        self._binaries = binaries
        for name in ("logs", "nodes", "volumes"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.control_plane = ControlPlane(
            self.directory / "control-plane",
            binaries,
            self.marker_value,
            self.options.control_plane,
        )
        self.control_plane.start(
            lambda client: install_objects(client, policies=self.options.admission_policies)
        )
        self._say(f"control plane ready after {time.monotonic() - began:.1f} s")
        self._start_storage()
        for node in self.options.nodes:
            self._configure_node(node)
            self.start_node(node.name)
        self._wait(lambda: nodes_ready(self.client()) >= len(self.options.nodes), "nodes")
        if self.options.agents and self.options.nodes:
            self._wait(
                lambda: nodes_measured(self.client()) >= len(self.options.nodes),
                "the agents' first measurements",
            )
        if self.options.operator:
            self.start_operator()
        self._say(f"cluster ready after {time.monotonic() - began:.1f} s")

    def stop(self) -> None:
        """Ends everything and removes the directory. Raises `ClusterError` if a process stays."""
        for child in self.children.values():
            # A graceful end is not needed, because all state is removed with the directory.
            stop_child(child, grace_seconds=0)
        self.children.clear()
        if hasattr(self, "control_plane"):
            self.control_plane.stop()
        if not self._watchdog.release():
            raise ClusterError(f"still running: {marked_processes(self.marker_value)}")

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    def client(self) -> ApiClient:
        """Returns a small blocking client with all rights."""
        return self.control_plane.client()

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the real kubectl. Raises `ClusterError` with its error output, unless check is
        False.
        """
        done = subprocess.run(
            [str(self._binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=KUBECTL_LIMIT_SECONDS,
            # kubectl caches its discovery of the API. The cache is removed with the cluster.
            env=os.environ | {"KUBECACHEDIR": str(self.directory / "kubectl-cache")},
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done

    def user_environment(self) -> dict[str, str]:
        """Returns the variables that a shell needs for this cluster. PATH must precede the shell's
        own.
        """
        folders = (self._binaries["kubectl"].parent, Path(sys.executable).parent)
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "PATH": ":".join(map(str, folders)),
        }

    def logs(self) -> dict[str, Path]:
        """Returns the log file of every part by its name."""
        files = [*(self.directory / "logs").glob("*.log")]
        files += (self.directory / "control-plane").glob("*.log")
        return {path.stem: path for path in sorted(files)}

    def copy_logs(self, where: Path) -> Path:
        """Copies the logs of all parts into a folder that outlives the cluster."""
        where.mkdir(parents=True, exist_ok=True)
        for path in self.logs().values():
            shutil.copy(path, where)
        return where

    def volume(self, claim: str, namespace: str = "default") -> Path:
        """Returns the local folder behind a claim. Raises `ClusterError` if it is not bound."""
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
        name = self.client().get(path)["spec"].get("volumeName")
        if not name:
            raise ClusterError(f"claim {namespace}/{claim} is not bound to a volume yet")
        return self.directory / "volumes" / name

    # Nodes and cards

    def node_names(self) -> list[str]:
        return list(self._node_options)

    def cards(self, node: str) -> list[str]:
        """Returns the UUIDs of a node's cards or GPUs. Raises `ClusterError` for an unknown
        node.
        """
        gpus = self._options_of(node).gpus
        if gpus:
            return list(gpus)
        return [card.uuid for card in read_cards(self._node_folder(node) / "cards.json")]

    def start_node(self, node: str) -> None:
        """Starts a node and its agent, possibly again. Pods that it had are lost, as after a
        reboot.
        """
        configuration = self._node_folder(node) / "node.json"
        command = [sys.executable, "-m", "gpujob_local.kubelet.process_node", str(configuration)]
        self._start_child(node, command, {})
        if self.options.agents:
            self.start_agent(node)

    def kill_node(self, node: str) -> None:
        """Kills the node, its agent and its pods' processes with SIGKILL, without a
        notification.
        """
        self.kill_agent(node)
        self._kill(node)

    def start_agent(self, node: str) -> None:
        kubeconfig = self._account_kubeconfig(AGENT_ACCOUNT)
        gpus = self._options_of(node).gpus
        module = GPU_NVML if gpus else CPU_NVML
        command = agent_command(node, kubeconfig, self.options.agent_interval_seconds, module)
        devices = {CARDS_VARIABLE: str(self._node_folder(node) / "cards.json")}
        if gpus:
            devices = {GPUS_VARIABLE: ",".join(gpus)} | driver_environment()
        self._start_child(f"agent-{node}", command, devices | dict(self.options.environment))

    def kill_agent(self, node: str) -> None:
        self._kill(f"agent-{node}")

    def reclaim(self, node: str, notice_seconds: float = 2.0, grace_seconds: float = 10.0) -> None:
        """Removes a node as a cloud does: notice, SIGTERM and grace, SIGKILL, gone.

        The notice is a taint with the deadline, `notice_seconds` before SIGTERM. Blocks until the
        Node object is deleted.
        """
        self._options_of(node)
        announce_reclaim(self.client(), node, notice_seconds + grace_seconds)
        self._say(f"{node}: reclaim in {notice_seconds:.0f} s")
        time.sleep(notice_seconds)
        if not ask_to_shut_down(self.control_plane, node, grace_seconds):
            self._say(f"{node}: did not answer")
        self.kill_node(node)
        delete_node(self.client(), node)
        self._say(f"{node}: gone")

    def start_unmanaged_process(self, card: str, memory_bytes: int) -> str:
        """Starts an unmanaged process that takes memory on a card. Returns its name once it has the
        memory.
        """
        name = f"unmanaged-{secrets.token_hex(3)}"
        command = [sys.executable, "-m", "gpujob_local.gpus.external_process", str(memory_bytes)]
        child = self.children[name] = self.start_on_card(card, name, command, {})
        self._wait(lambda: "ready" in child.log_tail(), f"{name} taking {memory_bytes} bytes")
        return name

    def start_on_card(
        self, card: str, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> Child:
        """Starts a process bound to a card as a pod's processes are. The caller ends it, or the end
        of the cluster.
        """
        bound = {"NVIDIA_VISIBLE_DEVICES": card, CUDA_DEVICES: ""}
        if any(card in node.gpus for node in self._node_options.values()):
            bound |= driver_environment() | {CUDA_DEVICES: card}
            return self._start_process(name, command, bound | dict(environment))
        cores = [self._core_of(card)]
        bound["OMP_NUM_THREADS"] = "1"
        return self._start_process(name, command, bound | dict(environment), cores=cores)

    def stop_unmanaged_process(self, name: str) -> None:
        self._kill(name)

    def kill_part(self, name: str) -> None:
        """Kills any part by its name with SIGKILL. Raises `ClusterError` with the known names."""
        if name in self.control_plane.children:
            self.control_plane.stop_component(name)
        elif name in self.children:
            self._kill(name)
        else:
            known = ", ".join([*self.control_plane.children, *self.children])
            raise ClusterError(f"no part {name!r}; there are: {known}")

    def start_part(self, name: str) -> None:
        """Starts the operator, an agent or a node that does not run. A node's agent starts with it.

        Raises `ClusterError` for a part that runs, and with the known names for any other name.
        """
        child = self.children.get(name)
        if child is not None and child.alive():
            raise ClusterError(f"{name} runs already")
        agents = {f"agent-{node}": node for node in self._node_options}
        if name == "operator":
            self.start_operator()
        elif name in self._node_options:
            self.kill_agent(name)
            self.start_node(name)
        elif name in agents:
            self.start_agent(agents[name])
        else:
            known = ", ".join(["operator", *self._node_options, *agents])
            raise ClusterError(f"no part {name!r} can be started; there are: {known}")

    # The operator

    def start_operator(self, *arguments: str) -> Child:
        """Starts the operator with its own account's rights and these additional arguments.

        Returns once it holds its Lease. Several may run, but only the newest is called `operator`.
        """
        child = self.spawn_operator("operator", *arguments)
        identity = f"{child.name}-{self._operators}"
        self._wait(lambda: identity in lease_holders(self.client()), "the operator's Lease")
        return child

    def spawn_operator(self, name: str, *arguments: str) -> Child:
        """Starts an operator under its own name and does not wait for it."""
        self._operators += 1
        configuration = self.directory / "operator.yaml"
        given = {"gateImage": OPERATOR_IMAGE, **self.options.operator_configuration}
        configuration.write_text(yaml.safe_dump(given))
        # The port stays the same after a restart, because workers have the address from before.
        port = self._report_ports.setdefault(name, free_port())
        options = {
            "kubeconfig": str(self._account_kubeconfig(OPERATOR_ACCOUNT)),
            "namespace": SYSTEM_NAMESPACE,
            "identity": f"{name}-{self._operators}",
            "lease-seconds": str(self.options.operator_lease_seconds),
            "report-listen": f"127.0.0.1:{port}",
            "metrics-listen": f"127.0.0.1:{free_port()}",
            "configuration": str(configuration),
            "dump-directory": str(self.directory / "dumps"),
        }
        command = operator_command(options, (*self.options.operator_arguments, *arguments))
        return self._start_child(name, command, dict(self.options.environment))

    def kill_operator(self, name: str = "operator") -> None:
        """Kills an operator with SIGKILL, as in a crash."""
        self._kill(name)

    # Internals

    def _start_storage(self) -> None:
        identity = self.control_plane.certificate_identity("storage", STORAGE_USER)
        kubeconfig = identity.write_kubeconfig(self.directory / "storage.kubeconfig")
        folder = str(self.directory / "volumes")
        command = [sys.executable, "-m", "gpujob_local.kubelet.storage", str(kubeconfig), folder]
        self._start_child("storage", command, {})

    def _configure_node(self, node: NodeOptions) -> None:
        number = self.node_names().index(node.name)
        configure_node(
            self.control_plane,
            self.options,
            node,
            directory=self.directory,
            environment=self._base_environment(),
            pod_network=f"127.{(self._networks + number) % 250 + 2}",
        )

    def _base_environment(self) -> dict[str, str]:
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            MARKER: self.marker_value,
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
            "HOME": str(self.directory),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
        }

    def _start_child(self, name: str, command: list[str], environment: dict[str, str]) -> Child:
        self.children[name] = self._start_process(name, command, environment)
        return self.children[name]

    def _start_process(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: Sequence[int] | None = None,
    ) -> Child:
        return start_child(
            name,
            command,
            self._base_environment() | dict(environment),
            self.directory / "logs" / f"{name}.log",
            folder=self.directory,
            cores=cores,
        )

    def _kill(self, name: str) -> None:
        child = self.children.pop(name, None)
        if child is not None:
            stop_child(child, grace_seconds=0)

    def _account_kubeconfig(self, account: str) -> Path:
        path = self.directory / f"{account}.kubeconfig"
        if not path.exists():
            token = account_token(self.client(), account)
            self.control_plane.token_identity(token).write_kubeconfig(path)
        return path

    def _options_of(self, node: str) -> NodeOptions:
        if node not in self._node_options:
            known = ", ".join(self._node_options)
            raise ClusterError(f"no node {node}; there are: {known}")
        return self._node_options[node]

    def _node_folder(self, node: str) -> Path:
        self._options_of(node)
        return self.directory / "nodes" / node

    def _core_of(self, uuid: str) -> int:
        for node in self.node_names():
            for card in read_cards(self._node_folder(node) / "cards.json"):
                if card.uuid == uuid:
                    return card.core
        raise ClusterError(f"no card {uuid}; `gpujob-local status` lists them")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def check() -> bool:
            for child in self.children.values():
                if not child.alive():
                    raise ClusterError(f"{child.name} ended:\n{child.log_tail()}")
            return condition()

        self.control_plane.wait_until(check, what)
