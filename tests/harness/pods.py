"""Pods for tests of process nodes, and waits for what becomes of them."""

import time
from collections.abc import Callable
from typing import Any

from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.control_plane.api_client import ApiClient, ApiError

Json = dict[str, Any]

IMAGE = WORKER_IMAGE
LIMIT_SECONDS = 60.0
IGNORE_TERM = (
    "import signal; signal.signal(15, signal.SIG_IGN); print('up')\nwhile True: signal.pause()"
)


def pod(name: str, script: str, **spec: Any) -> Json:
    """A pod that runs a Python script and is not restarted; `container` adds to its container."""
    container = {"name": "worker", "image": IMAGE, "command": ["python", "-u", "-c", script]}
    container |= spec.pop("container", {})
    base: Json = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": base | spec}


class Pods:
    """The pods of one namespace."""

    def __init__(self, client: ApiClient, namespace: str = "default") -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, body: Json) -> Json:
        return self._client.create(self._path, body)

    def get(self, name: str) -> Json | None:
        try:
            return self._client.get(f"{self._path}/{name}")
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def delete(self, name: str, grace_seconds: float | None = None) -> None:
        query = "" if grace_seconds is None else f"?gracePeriodSeconds={grace_seconds:.0f}"
        self._client.delete(f"{self._path}/{name}{query}")

    def wait(self, name: str, condition: Callable[[Json], bool], what: str) -> Json:
        """The pod once the condition holds. Raises AssertionError with its status at the limit."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            found = self.get(name)
            if found is not None and condition(found):
                return found
            status = None if found is None else found.get("status")
            assert time.monotonic() < deadline, f"pod {name}: {what} not seen; status {status}"
            time.sleep(0.02)

    def wait_phase(self, name: str, *phases: str) -> Json:
        return self.wait(name, lambda item: phase(item) in phases, " or ".join(phases))

    def wait_gone(self, name: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.get(name) is not None:
            assert time.monotonic() < deadline, f"pod {name} is still there"
            time.sleep(0.02)


def phase(item: Json) -> str:
    return item.get("status", {}).get("phase", "")


def state(item: Json, index: int = 0) -> Json:
    """The state of a container: {"running": ...}, {"waiting": ...} or {"terminated": ...}."""
    statuses = item.get("status", {}).get("containerStatuses", [])
    return statuses[index]["state"] if len(statuses) > index else {}


def wait_log(cluster: LocalCluster, name: str, text: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while text not in cluster.kubectl("logs", name, check=False).stdout:
        assert time.monotonic() < deadline, f"{name} never printed {text!r}"
        time.sleep(0.05)
