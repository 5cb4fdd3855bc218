"""Pods that belong to nobody of ours, and who reaches whom between pods of real kubelets."""

from collections.abc import Sequence
from typing import Any

from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.ground import Team
from tests.harness.waiting import wait_until

Json = dict[str, Any]

OPEN_PORT = 8000
STARTED_SECONDS = 90.0
# A packet that is dropped is sent again after 1 s and 3 s: one that was only late gets through.
ATTEMPT_SECONDS = 4
REACHED, TIMED_OUT = "reached", "timed out"

_ATTEMPTS = f"""
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def attempt(where):
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), {ATTEMPT_SECONDS}).close()
    except OSError as error:
        return str(error)
    return {REACHED!r}

with ThreadPoolExecutor() as pool:
    print("\\n".join(pool.map(attempt, sys.argv[1:])))
"""


def attempts(
    cluster: KubeletCluster, namespace: str, pod: str, addresses: Sequence[str]
) -> dict[str, str]:
    """What became of a connection from inside a pod to each HOST:PORT: `REACHED`, or an error."""
    command = ("python", "-c", _ATTEMPTS, *addresses)
    said = cluster.kubectl("exec", "--namespace", namespace, pod, "--", *command)
    return dict(zip(addresses, said.splitlines(), strict=True))


def visitor(team: Team, node: str) -> str:
    """A pod on a node that serves at `OPEN_PORT` and has a shell's freedom; its name."""
    name = f"visitor-{node}"
    team.apply(_server(team.namespace, name, node))
    return name


def open_address(team: Team, name: str) -> str:
    """Where a visitor is reached, once it is."""
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}"

    def ready() -> bool:
        conditions = team.client.get(path).get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    wait_until(ready, STARTED_SECONDS, f"{name} serves")
    return f"{team.client.get(path)['status']['podIP']}:{OPEN_PORT}"


def _server(namespace: str, name: str, node: str) -> Json:
    container: Json = {
        "name": "server",
        "image": WORKER_IMAGE,
        "command": ["python", "-m", "http.server", str(OPEN_PORT)],
        "readinessProbe": {"httpGet": {"path": "/", "port": OPEN_PORT}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
