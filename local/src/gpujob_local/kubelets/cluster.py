"""A cluster of real kubelets: control plane, containerd, images, names, and no part of GPUJob yet.

The chart is installed on it as on any cluster. Everything ends with the process that owns the
`KubeletCluster`. What the kernel does not end by itself is removed by `stop`, by `gpujob-local
down` or by the next `up` of the same name.
"""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from gpujob_local.control_plane.api_client import ApiClient
from gpujob_local.control_plane.control_plane import ClusterError, ControlPlane, Place
from gpujob_local.control_plane.ports import free_port
from gpujob_local.images.archive import Image, write_archive
from gpujob_local.images.recipes import cluster_images, shared_packages
from gpujob_local.kubelets import door, namespaces
from gpujob_local.kubelets.cleaning import clean
from gpujob_local.kubelets.image_store import architecture, image_store
from gpujob_local.kubelets.node import Ground, KubeletNode
from gpujob_local.kubelets.options import API_PORT, API_SERVICE_ADDRESS, HUB_ADDRESS, KubeletOptions
from gpujob_local.kubelets.record import Record, process_identity, settings_before
from gpujob_local.kubelets.requirements import Machine, refusal, without_policies
from gpujob_local.kubelets.tools import kubelet_tools
from gpujob_local.processes.processes import MARKER, Child, start_child, stop_child

COMMAND_LIMIT_SECONDS = 120.0
NODES_LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.2
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ADDONS = Path(__file__).with_name("addons.yaml")

Say = Callable[[str], None]


class KubeletCluster:
    """A cluster. `start` makes one that is ready; use it as a context manager, or call `stop`.

    Its methods block. They may be called from any thread, one at a time.
    """

    def __init__(self, options: KubeletOptions, directory: Path, say: Say) -> None:
        self.options = options
        self.directory = directory
        self.nodes: dict[str, KubeletNode] = {}
        self._say = say
        self._binaries: dict[str, Path] = {}
        self._children: list[Child] = []
        self._added: set[str] = set()
        self.marker_value = f"kubelets-{secrets.token_hex(8)}"
        self._record = Record(
            directory=str(directory),
            owner=process_identity(os.getpid()),
            marker=f"{MARKER}={self.marker_value}",
            cgroups=tuple(plan.cgroup for plan in options.plans(directory.name)),
            settings=settings_before(directory),
        )

    @classmethod
    def start(cls, options: KubeletOptions, directory: Path, say: Say) -> "KubeletCluster":
        """Returns a cluster whose nodes are ready, in an empty or absent folder of the same name.

        If that fails, raises `ClusterError` or `ToolError` and leaves nothing behind.
        """
        machine = Machine.look()
        if words := refusal(machine):
            raise ClusterError(words)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        cluster = cls(options, directory, say)
        cluster._record.write()
        try:
            cluster._start(machine)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def __enter__(self) -> "KubeletCluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends everything and removes what was made. Raises `ClusterError` if something is left."""
        for node in self.nodes.values():
            node.switch_off()
        if hasattr(self, "control_plane"):
            self.control_plane.stop()
        for child in reversed(self._children):
            stop_child(child, grace_seconds=0)
        clean(self._record)

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    def client(self) -> ApiClient:
        """Returns a small blocking client with all rights."""
        return self.control_plane.client()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Returns the real kubectl's output. Raises `ClusterError` with its error output if it
        fails.
        """
        return self.command("kubectl", *arguments, stdin=stdin)

    def command(self, tool: str, *arguments: str, stdin: str | None = None) -> str:
        """Does the same for another tool, such as helm."""
        done = subprocess.run(
            [str(self._binaries[tool]), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_SECONDS,
            env=os.environ | self.user_environment(),
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"{tool} {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    def add_image(self, image: Image) -> None:
        """Adds an image to every node, as if it had been pulled. A name means one image."""
        if self._added.issuperset(image.names):
            return
        archive = write_archive([image], architecture(), self.directory / "image.tar")
        for node in self.nodes.values():
            node.import_images(archive)
        archive.unlink()
        self._added.update(image.names)

    def user_environment(self) -> dict[str, str]:
        """Returns the variables that a shell needs for this cluster."""
        folders = [self._binaries[tool].parent for tool in ("kubectl", "helm")]
        folders.append(Path(sys.executable).parent)
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "HELM_CACHE_HOME": str(self.directory / "helm-cache"),
            "PATH": ":".join([*map(str, folders), os.environ.get("PATH", os.defpath)]),
        }

    def copy_logs(self, where: Path) -> Path:
        """Copies the logs of all parts into a folder that outlives the cluster."""
        where.mkdir(parents=True, exist_ok=True)
        for path in self.directory.glob("*/*.log"):
            shutil.copy(path, where)
        return where

    # Internals

    def _start(self, machine: Machine) -> None:
        assert machine.cni_folder is not None
        began = time.monotonic()
        self._binaries = kubelet_tools(self._say)
        packages = shared_packages(self._say)
        (self.directory / "logs").mkdir()
        images = cluster_images(self._binaries, self._say)
        store = image_store(images, self._binaries, self._environment(), self._say)
        hub = self._start_control_plane()
        self._say(f"control plane ready after {time.monotonic() - began:.1f} s")
        ground = Ground(
            options=self.options,
            binaries=self._binaries,
            cni_folder=machine.cni_folder,
            shared_packages=packages,
            images=store,
            environment=self._environment(),
            control_plane=self.control_plane,
            hub=hub,
            policies=machine.filters_bridges,
        )
        for plan in self.options.plans(self.directory.name):
            folder = self.directory / "nodes" / plan.name
            self.nodes[plan.name] = KubeletNode(plan, folder, ground)
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(_start_node, self.nodes.values()))
        self._wait_for_nodes()
        if words := without_policies(machine):
            self._say(words)
        self._say(
            f"cluster of {len(self.nodes)} kubelets ready after {time.monotonic() - began:.1f} s"
        )

    def _start_control_plane(self) -> namespaces.Namespaces:
        logs = self.directory / "logs"
        hub = namespaces.start_hub(logs, self._environment())
        port = free_port()
        python = [sys.executable, "-I", "-S", door.__file__]
        self._children += [
            hub.child,
            start_child(
                "door",
                [*python, str(port), hub.network_file, str(API_PORT)],
                self._environment(),
                logs / "door.log",
            ),
        ]
        place = Place(hub.enter, (HUB_ADDRESS, API_SERVICE_ADDRESS), port, API_PORT)
        self.control_plane = ControlPlane(
            self.directory / "control-plane",
            self._binaries,
            self.marker_value,
            self.options.control_plane,
            place,
        )
        self.control_plane.start(_apply_addons)
        return hub

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + NODES_LIMIT_SECONDS
        while waiting := self._not_ready():
            for node in self.nodes.values():
                node.restart_early_kubelet()
                for child in node.children.values():
                    if not child.alive():
                        raise ClusterError(f"{child.name} ended:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"not ready after {NODES_LIMIT_SECONDS:.0f} s: {waiting}")
            time.sleep(POLL_SECONDS)

    def _not_ready(self) -> list[str]:
        """Returns nodes that take no pods yet, then DNS."""
        found = {
            item["metadata"]["name"]: item["spec"].get("taints")
            for item in self.client().get("/api/v1/nodes")["items"]
        }
        missing = [name for name in self.nodes if found.get(name, ["absent"])]
        if missing:
            return missing
        path = "/apis/apps/v1/namespaces/kube-system/daemonsets/coredns"
        ready = self.client().get(path).get("status", {}).get("numberReady", 0)
        return [] if ready == len(self.nodes) else ["coredns"]

    def _environment(self) -> dict[str, str]:
        folders = {self._binaries[name].parent for name in ("containerd", "kubelet")}
        return {
            MARKER: self.marker_value,
            "PATH": ":".join([*map(str, sorted(folders)), SYSTEM_PATH]),
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
        }


def _start_node(node: KubeletNode) -> None:
    node.start_runtime()
    node.write_kubelet_files()
    node.start_kubelet()


def _apply_addons(client: ApiClient) -> None:
    """Applies names and rights, by the paths of their kinds."""
    for item in yaml.safe_load_all(ADDONS.read_text()):
        client.apply(_path(item), item)


_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Service": "services",
}


def _path(item: dict[str, dict[str, str]]) -> str:
    version, metadata = str(item["apiVersion"]), item["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if "namespace" in metadata:
        root += f"/namespaces/{metadata['namespace']}"
    return f"{root}/{_PLURALS[str(item['kind'])]}/{metadata['name']}"
