"""Kubelets that are played: nodes are ready at once, bound pods run, and deleted ones go."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpujob_local.control_plane.api_client import STRATEGIC_PATCH, ApiClient, ApiError

Json = Mapping[str, Any]


def play(client: ApiClient) -> None:
    """One round over all nodes and pods. What has gone meanwhile is left out."""
    for node in client.get("/api/v1/nodes")["items"]:
        if not is_true(node, "Ready"):
            _patch_status(client, f"/api/v1/nodes/{node['metadata']['name']}", _ready("Kubelet"))
    for pod in client.get("/api/v1/pods")["items"]:
        _play_pod(client, pod)


def _play_pod(client: ApiClient, pod: Json) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if not pod["spec"].get("nodeName"):
        return
    if metadata.get("deletionTimestamp"):
        try:
            client.delete(f"{path}?gracePeriodSeconds=0")
        except ApiError as error:
            if error.code != 404:
                raise
    elif pod["status"].get("phase") == "Pending":
        _patch_status(client, path, {"phase": "Running", **_ready("Pod")})


def _ready(reason: str) -> Json:
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": "True", "reason": f"{reason}Ready", "message": ""}
    return {"conditions": [condition | {"lastTransitionTime": moment}]}


def _patch_status(client: ApiClient, path: str, status: Json) -> None:
    try:
        client.request("PATCH", f"{path}/status", {"status": status}, STRATEGIC_PATCH)
    except ApiError as error:
        if error.code not in (404, 409):
            raise


def is_true(thing: Json, kind: str) -> bool:
    conditions = thing.get("status", {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)
