"""Removes a node as a cloud does, in steps: notice, end of its pods, end of the Node object."""

import urllib.request
from datetime import UTC, datetime, timedelta

from gpujob_local.control_plane.api_client import ApiClient, ApiError, ssl_context
from gpujob_local.control_plane.control_plane import ControlPlane
from gpujob_local.control_plane.identity import Identity

RECLAIM_TAINT = "gpujob.dev/reclaim"
# Seconds that a node may take beyond the grace period to publish how its pods ended.
ANSWER_SECONDS = 30.0


def announce_reclaim(client: ApiClient, node: str, seconds: float) -> None:
    """Sets the notice, a taint with the time at which the node will be gone."""
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    value = str(int(deadline.timestamp()))
    taint = {"key": RECLAIM_TAINT, "value": value, "effect": "NoSchedule"}
    path = f"/api/v1/nodes/{node}"
    before = client.get(path)["spec"].get("taints", [])
    others = [item for item in before if item["key"] != RECLAIM_TAINT]
    client.merge(path, {"spec": {"taints": [*others, taint]}})


def ask_to_shut_down(control_plane: ControlPlane, node: str, grace_seconds: float) -> bool:
    """Makes a node end its pods, and waits for that. Returns False if the node does not answer."""
    certificate, key = control_plane.kubelet_client
    identity = Identity("", control_plane.authority_path, certificate=certificate, key=key)
    status = control_plane.client().get(f"/api/v1/nodes/{node}")["status"]
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://127.0.0.1:{port}/gpujob/reclaim?graceSeconds={grace_seconds}"
    request = urllib.request.Request(url, method="POST")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl_context(identity)),
    )
    try:
        with opener.open(request, timeout=grace_seconds + ANSWER_SECONDS):
            return True
    except OSError:
        return False


def delete_node(client: ApiClient, node: str) -> None:
    """Deletes a Node object. It is no error if it is already gone."""
    try:
        client.delete(f"/api/v1/nodes/{node}")
    except ApiError as error:
        if error.code != 404:
            raise
