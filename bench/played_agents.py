"""What an agent needs to send its readings directly, for agents that are played in one process."""

import random
import re
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPU, GPUProcess
from gpujob_api.quantities import GIB
from gpujob_api.reading import ReadingReply
from gpujob_local.cluster.setup import AGENT_ACCOUNT, SYSTEM_NAMESPACE
from gpujob_local.control_plane.api_client import ApiClient
from gpujob_operator.agent.direct import Connect, Connection

# The operator takes readings of this account's pods, each of its own node.
AGENT_ARGUMENT = f"--agent-account={SYSTEM_NAMESPACE}:{AGENT_ACCOUNT}"
INTERVAL_SECONDS = 2.0
# Between two owners of a GPU, on each node.
CHANGE_SECONDS = 300.0
_LOG_SECONDS = 60.0


def write_token(client: ApiClient, node: str, folder: Path) -> Path:
    """Creates the agent's pod on the node. Writes the pod's token, as its kubelet would get it."""
    pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    spec: dict[str, Any] = {
        "serviceAccountName": AGENT_ACCOUNT,
        "nodeName": node,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "agent", "image": "any"}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"agent-{node}"}, "spec": spec}
    uid = client.create(pods, pod)["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": f"agent-{node}", "uid": uid}
    request = {"spec": {"audiences": ["gpujob"], "boundObjectRef": bound}}
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{AGENT_ACCOUNT}/token"
    file = folder / node
    file.write_text(client.create(path, request)["status"]["token"])
    return file


def node_session(number: int) -> Callable[[], aiohttp.ClientSession]:
    """Each node has its own address: the operator bounds TokenReviews by address."""
    address = f"127.0.{number // 250 + 1}.{number % 250 + 1}"

    def make() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(address, 0)))

    return make


@dataclass
class PlayedNode:
    """What an agent reads: it changes a little all the time."""

    name: str
    gpus: int
    dice: random.Random = field(default_factory=random.Random)
    owners: list[str] = field(default_factory=list[str])

    def read(self) -> tuple[GPU, ...]:
        if not self.owners:
            self.owners = [f"pod-{self.name}-{index}" for index in range(self.gpus)]
        if self.dice.random() < INTERVAL_SECONDS / CHANGE_SECONDS:
            index = self.dice.randrange(self.gpus)
            self.owners[index] = f"pod-{self.name}-{self.dice.randrange(10**9)}"
        return tuple(self._gpu(index) for index in range(self.gpus))

    def _gpu(self, index: int) -> GPU:
        busy = index < self.gpus / 2
        used = 20 * GIB if busy else 0
        jitter = self.dice.uniform
        return GPU(
            uuid=f"GPU-{self.name}-{index}",
            index=index,
            model="NVIDIA H100 80GB HBM3",
            memory_total_bytes=80 * GIB,
            memory_used_bytes=used,
            utilization_percent=round(jitter(80, 100)) if busy else 0.0,
            power_watts=round(jitter(600, 700) if busy else jitter(70, 72)),
            energy_joules=round(time.monotonic() * 100),
            temperature_celsius=round(jitter(60, 70) if busy else jitter(30, 32)),
            processes=(GPUProcess(1000 + index, used, self.owners[index]),) if busy else (),
        )


@dataclass(frozen=True, slots=True)
class Witness:
    """Of which nodes an operator has taken a reading, as its replies say. By its URL."""

    nodes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def watching(self, node: str, connect: Connect) -> Connect:
        """Opens the node's connections, and sees what is replied on them."""

        async def connect_seen(url: str, wait_seconds: float) -> Connection:
            return _Seen(await connect(url, wait_seconds), lambda: self.nodes[url].add(node))

        return connect_seen


class _Seen:
    def __init__(self, connection: Connection, took: Callable[[], None]) -> None:
        self._connection = connection
        self._took = took

    async def send(self, text: str) -> None:
        await self._connection.send(text)

    async def receive(self) -> str:
        text = await self._connection.receive()
        # What cannot be read is the agent's to judge.
        with suppress(FieldError):
            reply = ReadingReply.from_text(text)
            # The first reply, 0, is a greeting.
            if reply.sequence and not reply.full:
                self._took()
        return text

    async def close(self) -> None:
        await self._connection.close()


def readings_url(log: Path) -> str:
    """Where an operator takes readings."""
    return logged(log, "reports").removesuffix("report") + "readings"


def logged(log: Path, key: str) -> str:
    """A value of the operator's line `started`. Raises `TimeoutError` after a minute."""
    deadline = time.monotonic() + _LOG_SECONDS
    while time.monotonic() < deadline:
        found = re.search(rf'"message": ?"started".*?"{key}": ?"([^"]+)"', log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"no start in {log}")
