"""A running control plane for tests (`control_plane`) and whole local clusters (`local_cluster`).

It is never skipped: where the binaries are missing they are built first, which takes minutes once.
"""

import os
import secrets
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpujob_local.cluster.cluster import ClusterOptions, LocalCluster
from gpujob_local.control_plane.api_client import ApiClient
from gpujob_local.control_plane.control_plane import ControlPlane, ControlPlaneOptions
from gpujob_local.control_plane.manifests import install_crds
from gpujob_local.control_plane.tools import find_tools
from gpujob_local.processes.processes import Watchdog

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient as AsyncApiClient


@dataclass(frozen=True, slots=True)
class RunningControlPlane:
    """An API server with our CRDs, and the ways to talk to it."""

    control_plane: ControlPlane
    binaries: dict[str, Path]

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the real kubectl; a failure raises with what kubectl said unless check is False."""
        command = [str(self.binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments]
        # kubectl keeps a discovery cache in the home folder; ours goes with the cluster.
        environment = os.environ | {"KUBECACHEDIR": str(self.control_plane.directory / "cache")}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=60, env=environment
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done

    def client(self) -> ApiClient:
        """A small blocking client with all rights."""
        return self.control_plane.client()

    @asynccontextmanager
    async def api_client(self, kubeconfig: Path | None = None) -> "AsyncGenerator[AsyncApiClient]":
        """A `kubernetes.aio` client, as the operator uses it."""
        # Imported late: it takes a second, and every test session loads this module.
        from kubernetes.aio import client as kubernetes_client
        from kubernetes.aio import config as kubernetes_config

        configuration = kubernetes_client.Configuration()
        await kubernetes_config.load_kube_config(
            config_file=str(kubeconfig or self.kubeconfig), client_configuration=configuration
        )
        async with kubernetes_client.ApiClient(configuration) as api:
            yield api


@contextmanager
def running_control_plane(
    options: ControlPlaneOptions | None = None, crds: bool = True
) -> Generator[RunningControlPlane]:
    """Starts a control plane of one's own, with our CRDs, and removes all of it afterwards."""
    binaries = find_tools()
    directory = Path(tempfile.mkdtemp(prefix="gpujob-test-"))
    marker = f"test-{secrets.token_hex(6)}"
    watchdog = Watchdog(marker, directory)
    plane = ControlPlane(directory, binaries, marker, options)
    try:
        plane.start(install_crds if crds else None)
        yield RunningControlPlane(plane, binaries)
    finally:
        plane.stop()
        assert watchdog.release(), f"processes of {marker} are left"


@pytest.fixture(scope="session")
def control_plane() -> Generator[RunningControlPlane]:
    """One control plane with our CRDs for the whole session; use a namespace of your own."""
    with running_control_plane() as running:
        yield running


@pytest.fixture
def namespace(control_plane: RunningControlPlane) -> Generator[str]:
    """A fresh namespace in the session's control plane."""
    name = f"test-{secrets.token_hex(4)}"
    client = control_plane.client()
    body = {"metadata": {"name": name}}
    client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace"} | body)
    control_plane.control_plane.wait_until(
        lambda: bool(client.get(f"/api/v1/namespaces/{name}/serviceaccounts")["items"]),
        f"the default service account of {name}",
    )
    yield name
    client.delete(f"/api/v1/namespaces/{name}")


StartCluster = Callable[[ClusterOptions], LocalCluster]


@pytest.fixture(scope="module")
def local_cluster() -> Generator[StartCluster]:
    """Starts clusters that end with the module: `local_cluster(ClusterOptions(...))`."""
    started: list[LocalCluster] = []

    def start(options: ClusterOptions) -> LocalCluster:
        cluster = LocalCluster.start(options)
        started.append(cluster)
        return cluster

    yield start
    for cluster in started:
        cluster.stop()
