"""A process node: a small stand-in for a kubelet that runs containers' commands as processes.

`python -m gpujob_local.kubelet.process_node CONFIGURATION.json`. It registers a Node, keeps its
Lease and status fresh, and runs every pod that the scheduler binds to it. It ends on SIGTERM, and
its pods' processes end with it. There are no images, namespaces or limits. Unsupported features are
reported in the pod's status.
"""

import asyncio
import json
import os
import platform
import shutil
import signal
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpujob_local.control_plane.api_client import MERGE_PATCH, STRATEGIC_PATCH, ApiError
from gpujob_local.control_plane.identity import Identity
from gpujob_local.gpus.cpu_cards import read_cards
from gpujob_local.kubelet.container_runner import ContainerRunner, NodeSettings
from gpujob_local.kubelet.node_api import NodeApi, patiently
from gpujob_local.kubelet.node_server import NodeServer, ServerFiles
from gpujob_local.kubelet.pod_environment import Json
from gpujob_local.kubelet.pod_runner import HOST_IP, PodRunner
from gpujob_local.kubelet.pod_status import timestamp

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 3.0
STATUS_SECONDS = 60.0
STATUS_WRITE_SECONDS = 3.0
ADDRESSES_MAX = 60_000


@dataclass(frozen=True, slots=True)
class NodeConfiguration:
    """One node, as JSON. `pod_network` is the first half of its pods' addresses, such as 127.9."""

    name: str
    kubeconfig: str
    folder: str
    shared_volumes: str
    cards_file: str
    certificate: str
    key: str
    pod_network: str
    labels: dict[str, str] = field(default_factory=dict[str, str])
    images: dict[str, str] = field(default_factory=dict[str, str])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    # UUIDs of the machine's GPUs that belong to the node, in place of CPU cards.
    gpus: list[str] = field(default_factory=list[str])
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_text(cls, text: str) -> "NodeConfiguration":
        return cls(**json.loads(text))

    def settings(self) -> NodeSettings:
        return NodeSettings(
            name=self.name,
            folder=Path(self.folder),
            shared_volumes=Path(self.shared_volumes),
            images={name: Path(folder) for name, folder in self.images.items()},
            cards=read_cards(Path(self.cards_file)),
            environment=self.environment,
            gpus=tuple(self.gpus),
        )


class ProcessNode:
    """Runs until it is stopped. `run` needs an entered `NodeApi`."""

    def __init__(self, configuration: NodeConfiguration, api: NodeApi, server: ServerFiles) -> None:
        self._configuration = configuration
        self._api = api
        self._settings = configuration.settings()
        self._runners: dict[str, PodRunner] = {}
        self._addresses = 0
        self._reclaimed = False
        self._server = NodeServer(server, self._find_container, self._reclaim)

    async def run(self) -> None:
        port = await self._server.start()
        try:
            await self._register(port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                group.create_task(self._keep_status(port))
                group.create_task(self._follow_pods())
        finally:
            await self._server.stop()

    async def _register(self, port: int) -> None:
        labels = {
            "kubernetes.io/hostname": self._configuration.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64"}.get(platform.machine(), platform.machine()),
            **self._configuration.labels,
        }
        node = {"metadata": {"name": self._configuration.name, "labels": labels}}
        status = self._status(port)
        try:
            body = node | {"status": status}
            await patiently(lambda: self._api.request("POST", "/api/v1/nodes", body))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            path = f"/api/v1/nodes/{self._configuration.name}"
            await patiently(lambda: self._api.request("PATCH", path, node, MERGE_PATCH))
            await self._write_status(port)

    def _status(self, port: int) -> Json:
        configuration = self._configuration
        now = timestamp(datetime.now(UTC))
        amounts = {
            "cpu": configuration.cpu,
            "memory": configuration.memory,
            "pods": str(configuration.pods),
        }
        return {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                _condition("Ready", "True", "KubeletReady", "process node is ready", now),
                _condition("MemoryPressure", "False", "NotMeasured", "not measured", now),
                _condition("DiskPressure", "False", "NotMeasured", "not measured", now),
                _condition("PIDPressure", "False", "NotMeasured", "not measured", now),
            ],
            "addresses": [
                {"type": "InternalIP", "address": HOST_IP},
                {"type": "Hostname", "address": configuration.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": _node_info(),
        }

    async def _write_status(self, port: int) -> None:
        path = f"/api/v1/nodes/{self._configuration.name}/status"
        body = {"status": self._status(port)}
        await patiently(lambda: self._api.request("PATCH", path, body, STRATEGIC_PATCH))

    async def _keep_status(self, port: int) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            try:
                await self._write_status(port)
            except ApiError as error:
                _say(f"node status refused: {error}")

    async def _keep_lease(self) -> None:
        """Renews the Lease every 3 s, which shows the control plane that this node is alive."""
        name = self._configuration.name
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
            lease = {"metadata": {"name": name}, "spec": spec}
            try:
                await self._renew(name, lease)
            except ApiError as error:
                _say(f"lease refused: {error}")
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _renew(self, name: str, lease: Json) -> None:
        try:
            path = f"{LEASE_PATH}/{name}"
            await patiently(lambda: self._api.request("PATCH", path, lease, MERGE_PATCH))
        except ApiError as error:
            if error.code != 404:
                raise
            await patiently(lambda: self._api.request("POST", LEASE_PATH, lease))

    async def _follow_pods(self) -> None:
        selector = f"spec.nodeName={self._configuration.name}"
        async for kind, item in self._api.watch("/api/v1/pods", fieldSelector=selector):
            if kind == "SYNC":
                await self._synchronize(item)
            elif kind == "DELETED":
                if runner := self._runners.get(item["metadata"]["uid"]):
                    runner.object_gone()
            else:
                self._see(item)

    async def _synchronize(self, pods: list[Json]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid, runner in list(self._runners.items()):
            if uid not in present:
                runner.object_gone()
        # Pods with an address come first, so that no other pod gets it after a restart of this
        # node.
        for pod in sorted(pods, key=lambda pod: "podIP" not in pod.get("status", {})):
            self._see(pod)
        await asyncio.to_thread(self._remove_old_folders, present | set(self._runners))

    def _remove_old_folders(self, kept: set[str]) -> None:
        root = self._settings.folder / "pods"
        for folder in root.iterdir() if root.is_dir() else ():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _see(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        runner = self._runners.get(uid)
        if runner is not None:
            runner.update(pod)
        elif not self._reclaimed:
            address = pod.get("status", {}).get("podIP") or self._next_address()
            runner = PodRunner(pod, self._api, self._settings, address)
            self._runners[uid] = runner
            runner.start()
            assert runner.task is not None
            runner.task.add_done_callback(lambda task, uid=uid: self._finished(uid, task))

    def _finished(self, uid: str, task: "asyncio.Task[None]") -> None:
        self._runners.pop(uid, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _say(f"pod {uid}: {problem!r}")

    def _next_address(self) -> str:
        """Returns a free address. Every pod has its own on loopback, so that two may listen on the
        same port.
        """
        taken = {runner.address for runner in self._runners.values()}
        for _ in range(ADDRESSES_MAX):
            self._addresses = self._addresses % ADDRESSES_MAX + 1
            third, fourth = divmod(self._addresses, 250)
            address = f"{self._configuration.pod_network}.{third}.{fourth + 1}"
            if address not in taken:
                return address
        raise RuntimeError(f"all {ADDRESSES_MAX} addresses of pods are taken")

    def _find_container(self, namespace: str, pod: str, name: str) -> ContainerRunner | None:
        for runner in self._runners.values():
            if runner.name == (namespace, pod):
                return runner.container(name)
        return None

    async def _reclaim(self, grace_seconds: float) -> int:
        """Ends all pods like a node that shuts down. New ones are no longer started."""
        self._reclaimed = True
        runners = list(self._runners.values())
        await asyncio.gather(
            *(runner.shut_down(grace_seconds, STATUS_WRITE_SECONDS) for runner in runners)
        )
        return len(runners)


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
    }


def _node_info() -> dict[str, str]:
    return {
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": "process node (no images)",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.36.0-process-node",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": platform.machine(),
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()


async def serve(configuration: NodeConfiguration) -> None:
    """Runs the node until SIGTERM or SIGINT."""
    identity = Identity.read_kubeconfig(Path(configuration.kubeconfig))
    files = ServerFiles(
        Path(configuration.certificate), Path(configuration.key), identity.authority
    )
    async with NodeApi(identity) as api:
        work = asyncio.create_task(ProcessNode(configuration, api, files).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        await asyncio.wait([work])
        if not work.cancelled():
            await work


def main(path: str) -> int:
    os.umask(0o077)
    asyncio.run(serve(NodeConfiguration.from_text(Path(path).read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
