"""What an agent needs to send its readings directly, for agents that are played in one process."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from gpujob_local.cluster.setup import AGENT_ACCOUNT, SYSTEM_NAMESPACE
from gpujob_local.control_plane.api_client import ApiClient

# The operator takes readings of this account's pods, each of its own node.
AGENT_ARGUMENT = f"--agent-account={SYSTEM_NAMESPACE}:{AGENT_ACCOUNT}"
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
