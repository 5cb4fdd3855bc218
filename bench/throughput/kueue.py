"""Kueue's manager as a process of its own, beside the control plane.

It has the certificates that it makes itself. What a kubelet would do with the Secret in which they
are, write it into a folder of the manager's pod, is done here.
"""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.throughput.kueue_manifests import (
    FEATURE_GATES,
    SECRET,
    SYSTEM,
    VERSION,
    Json,
    Ports,
    cluster_queue,
    configuration,
    definitions,
    local_queue,
    resource_flavor,
    secret,
    service,
    webhook_configurations,
)
from bench.throughput.load import KUEUE_QUEUE
from bench.throughput.progress import say, wait_until
from bench.throughput.stack import Stack, loopback_get
from gpujob_local.control_plane.go_sources import source_folder
from gpujob_local.control_plane.identity import write_private
from gpujob_local.control_plane.manifests import install_crds, read_manifests
from gpujob_local.control_plane.ports import free_port
from gpujob_local.control_plane.tools import find_tools

NAME = "kueue"
MODULE = "sigs.k8s.io/kueue"
POLL_SECONDS = 0.1

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = {
    kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}
_NAMESPACES = "/api/v1/namespaces"
_KUEUE = f"/apis/{VERSION}"
_CLUSTER_QUEUES, _FLAVORS = f"{_KUEUE}/clusterqueues", f"{_KUEUE}/resourceflavors"


@dataclass(slots=True)
class Kueue:
    """Installs and runs Kueue on a control plane. `sources` are those of its Go module."""

    stack: Stack
    binary: Path
    sources: Path
    ports: Ports = field(default_factory=lambda: Ports(free_port(), free_port(), free_port()))

    @classmethod
    def found(cls, stack: Stack) -> "Kueue":
        """Builds it the first time."""
        return cls(stack, find_tools(NAME, say)[NAME], source_folder(NAME, MODULE, say))

    @property
    def folder(self) -> Path:
        return self.stack.cluster.directory / NAME

    async def start(self) -> None:
        """Returns once its webhooks answer and its ClusterQueue takes jobs."""
        await asyncio.to_thread(self._install)
        self.stack.start_part(NAME, self._command())
        await self._until(self._has_certificates, "the certificates of Kueue")
        await self._until(self._is_ready, "Kueue")
        await asyncio.to_thread(self._create_cluster_queue)
        queue = f"{_CLUSTER_QUEUES}/{KUEUE_QUEUE}"
        await self._until(lambda: self._is_active(queue), "an active ClusterQueue")

    async def prepare(self, namespace: str) -> None:
        """Returns once jobs of the namespace may come."""
        queues = f"{_KUEUE}/namespaces/{namespace}/localqueues"
        await asyncio.to_thread(self.stack.client.create, queues, local_queue())
        queue = f"{queues}/{KUEUE_QUEUE}"
        await self._until(lambda: self._is_active(queue), f"an active LocalQueue of {namespace}")

    def _install(self) -> None:
        client = self.stack.client
        folder = self.folder / "crds"
        folder.mkdir(mode=0o700, parents=True)
        for definition in self._definitions():
            file = folder / f"{definition['metadata']['name']}.yaml"
            file.write_text(yaml.safe_dump(definition))
        install_crds(client, folder)
        client.create(_NAMESPACES, {"metadata": {"name": SYSTEM}})
        client.create(f"{_NAMESPACES}/{SYSTEM}/services", service())
        client.create(f"{_NAMESPACES}/{SYSTEM}/secrets", secret())
        for manifest in self._webhooks():
            client.create(_WEBHOOKS[manifest["kind"]], manifest)

    def _command(self) -> list[str]:
        certificates = self.folder / "certificates"
        certificates.mkdir(mode=0o700)
        (default,) = read_manifests([self._config("manager/controller_manager_config.yaml")])
        file = self.folder / "configuration.yaml"
        file.write_text(yaml.safe_dump(configuration(default, certificates, self.ports)))
        return [
            str(self.binary),
            f"--config={file}",
            f"--kubeconfig={self.stack.cluster.kubeconfig}",
            f"--feature-gates={FEATURE_GATES}",
        ]

    def _has_certificates(self) -> bool:
        """Writes them where Kueue waits for them. It looks for the last one of these files."""
        path = f"{_NAMESPACES}/{SYSTEM}/secrets/{SECRET}"
        data = self.stack.client.get(path).get("data") or {}
        for name in ("tls.key", "tls.crt"):
            if name not in data:
                return False
            write_private(self.folder / "certificates" / name, base64.b64decode(data[name]))
        return True

    def _is_ready(self) -> bool:
        try:
            loopback_get(self.ports.health, "/readyz")
        except OSError:
            return False
        return True

    def _create_cluster_queue(self) -> None:
        stack = self.stack
        stack.client.create(_FLAVORS, resource_flavor())
        stack.client.create(_CLUSTER_QUEUES, cluster_queue(stack.nodes, stack.gpus))

    def _is_active(self, path: str) -> bool:
        conditions = (self.stack.client.get(path).get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Active" and one["status"] == "True" for one in conditions)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        await wait_until(condition, what, self.stack, poll_seconds=POLL_SECONDS)

    def _config(self, path: str) -> Path:
        return self.sources / "config" / "components" / path

    def _webhooks(self) -> list[Json]:
        manifests = read_manifests([self._config("webhook/manifests.yaml")])
        return webhook_configurations(manifests, self.ports.webhook)

    def _definitions(self) -> list[Json]:
        crds = read_manifests(sorted(self._config("crd/bases").glob("*.yaml")))
        # Those of its default installation.
        (choice,) = read_manifests([self._config("crd/kustomization.yaml")])
        patches = read_manifests(self._config("crd") / one["path"] for one in choice["patches"])
        return definitions(crds, patches, self.ports.webhook)
