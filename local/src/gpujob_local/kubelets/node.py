"""One node: its namespaces, containerd, kubelet and other programs, and the faults that can happen
to it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpujob_local.control_plane.control_plane import ClusterError, ControlPlane
from gpujob_local.kubelets import cgroups, configuration, namespaces
from gpujob_local.kubelets.image_store import import_archive, link_store
from gpujob_local.kubelets.namespaces import Namespaces
from gpujob_local.kubelets.network_policies import agent
from gpujob_local.kubelets.options import KubeletOptions, NodePlan
from gpujob_local.processes.processes import Child, start_child, stop_child

SOCKET_LIMIT_SECONDS = 30.0
SPECIFICATION_LIMIT_SECONDS = 15.0
POLL_SECONDS = 0.05
RUNTIME_NOT_THERE_YET = "server is not initialized yet"
MANAGED_LABEL = "gpujob.dev/managed=true"
POLICY_AGENT = "network-policies"
POLICY_USER = "gpujob-local:network-policies"


@dataclass(frozen=True, slots=True)
class Ground:
    """The facts that all nodes of a cluster share."""

    options: KubeletOptions
    binaries: Mapping[str, Path]
    cni_folder: Path
    shared_packages: Path
    images: Path
    environment: Mapping[str, str]
    control_plane: ControlPlane
    hub: Namespaces
    policies: bool


class KubeletNode:
    """A node that can be started, broken on purpose and started again. Its methods block."""

    def __init__(self, plan: NodePlan, folder: Path, ground: Ground) -> None:
        self.plan = plan
        self.folder = folder
        self.children: dict[str, Child] = {}
        self._ground = ground
        self._namespaces: Namespaces | None = None

    def start_runtime(self) -> None:
        """Starts namespaces and containerd with all images, also after `switch_off`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "containerd").is_dir():
            (self.folder / "containerd").mkdir()
            link_store(self._ground.images, self.folder / "containerd" / "root")
        cgroups.make(self.plan.cgroup)
        self._namespaces = namespaces.start_node(
            self.plan, self._ground.hub, self.folder, self._ground.environment
        )
        self._write_runtime_files()
        self.start_containerd()

    def start_containerd(self) -> None:
        socket = configuration.containerd_socket(self.folder)
        socket.unlink(missing_ok=True)
        child = self._start("containerd", "--config", str(self.folder / "containerd.toml"))
        deadline = time.monotonic() + SOCKET_LIMIT_SECONDS
        while not socket.exists():
            if not child.alive() or time.monotonic() > deadline:
                raise ClusterError(f"{self.plan.name}: no containerd:\n{child.log_tail()}")
            time.sleep(POLL_SECONDS)

    def import_images(self, archive: Path) -> None:
        """Adds images to those with which it began."""
        socket = configuration.containerd_socket(self.folder)
        import_archive(archive, socket, self._ground.binaries["ctr"])

    def start_kubelet(self) -> None:
        """Starts the kubelet and, if they do not run, the other programs; also after
        `stop_kubelet`.
        """
        plan, folder = self.plan, self.folder
        self._start(
            "kubelet",
            f"--config={folder / 'kubelet.yaml'}",
            f"--kubeconfig={folder / 'kubelet.kubeconfig'}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'certificates'}",
            f"--hostname-override={plan.name}",
            f"--node-ip={plan.address}",
            f"--node-labels={MANAGED_LABEL}",
        )
        if "kube-proxy" not in self.children:
            self._start("kube-proxy", f"--config={folder / 'proxy.yaml'}")
        if self._ground.policies and POLICY_AGENT not in self.children:
            self._start(POLICY_AGENT, plan.name, str(folder / "policies.kubeconfig"))

    def restart_early_kubelet(self) -> None:
        """Starts an ended kubelet again, as a service manager would.

        containerd has its socket before its service for kubelets, and a kubelet that finds none
        ends.
        """
        kubelet = self.children["kubelet"]
        if not kubelet.alive() and RUNTIME_NOT_THERE_YET in kubelet.log_tail():
            self.start_kubelet()

    def write_kubelet_files(self) -> None:
        """Writes certificates and settings, once. They identify a node, so it keeps them."""
        plan, folder, control_plane = self.plan, self.folder, self._ground.control_plane
        user = f"system:node:{plan.name}"
        identity = control_plane.certificate_identity(f"{plan.name}-client", user, "system:nodes")
        identity.write_kubeconfig(folder / "kubelet.kubeconfig")
        serving = control_plane.issue(f"{plan.name}-server", user, (plan.address,))
        kubelet = configuration.kubelet_configuration(
            plan,
            folder,
            control_plane.authority_path,
            serving,
            self._ground.options.lease_seconds,
        )
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        proxy = control_plane.certificate_identity(f"{plan.name}-proxy", "system:kube-proxy")
        kubeconfig = proxy.write_kubeconfig(folder / "proxy.kubeconfig")
        settings = configuration.proxy_configuration(plan, kubeconfig)
        (folder / "proxy.yaml").write_text(yaml.safe_dump(settings))
        policies = control_plane.certificate_identity(f"{plan.name}-policies", POLICY_USER)
        policies.write_kubeconfig(folder / "policies.kubeconfig")

    # Faults of a node

    def stop_kubelet(self) -> None:
        """Kills only the kubelet with SIGKILL. Containers continue."""
        self._stop("kubelet")

    def cut_network(self) -> None:
        """Cuts the node off in both directions. Its processes continue."""
        self._ground.hub.run("ip", "link", "set", self.plan.link, "down")

    def restore_network(self) -> None:
        self._ground.hub.run("ip", "link", "set", self.plan.link, "up")

    def kill_containers(self) -> None:
        """Kills the kubelet, then every container and its shim with SIGKILL, so that none is
        reported.
        """
        self.stop_kubelet()
        for process in self._shims() | cgroups.processes(self.plan.cgroup):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def switch_off(self) -> None:
        """Ends every process of the node at once, as in a power cut. Its disk stays."""
        if self._namespaces is not None:
            stop_child(self._namespaces.child, grace_seconds=0)
            self._namespaces = None
        for name in list(self.children):
            self._stop(name)

    def processes(self) -> set[int]:
        """Returns the ids of the node's container processes on this machine."""
        return cgroups.processes(self.plan.cgroup)

    # Internals

    def _shims(self) -> set[int]:
        wanted = str(self.folder).encode()
        found: set[int] = set()
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit():
                    command = Path(f"/proc/{entry}/cmdline").read_bytes()
                    if b"containerd-shim-runc-v2" in command and wanted in command:
                        found.add(int(entry))
        return found

    def _entered(self) -> Namespaces:
        if self._namespaces is None:
            raise ClusterError(f"{self.plan.name} is switched off")
        return self._namespaces

    def _start(self, name: str, *arguments: str) -> Child:
        program = [sys.executable, "-I", "-m", agent.__name__]
        if name != POLICY_AGENT:
            program = [str(self._ground.binaries[name])]
        child = start_child(
            f"{self.plan.name}-{name}",
            [*self._entered().enter, *program, *arguments],
            self._ground.environment,
            self.folder.parent.parent / "logs" / f"{self.plan.name}-{name}.log",
        )
        self.children[name] = child
        return child

    def _stop(self, name: str) -> None:
        child = self.children.pop(name, None)
        if child is not None:
            stop_child(child, grace_seconds=0)

    def _write_runtime_files(self) -> None:
        folder, ground = self.folder, self._ground
        (folder / "cni").mkdir(exist_ok=True)
        network = configuration.network_configuration(self.plan, folder)
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        spec = configuration.container_specification(
            self._default_specification(), ground.shared_packages
        )
        configuration.specification_file(folder).write_text(json.dumps(spec))
        settings = configuration.containerd_configuration(folder, ground.cni_folder)
        (folder / "containerd.toml").write_text(configuration.to_toml(settings))

    def _default_specification(self) -> configuration.Json:
        done = subprocess.run(
            [str(self._ground.binaries["ctr"]), "oci", "spec"],
            capture_output=True,
            timeout=SPECIFICATION_LIMIT_SECONDS,
            check=True,
        )
        return json.loads(done.stdout)
