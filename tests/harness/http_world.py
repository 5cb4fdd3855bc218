"""The whole operator process against an API server over HTTP, with nodes whose agents report.

The API server is `tests.harness.http_api`. Nobody runs pods: a job counts as served once its pod
is created.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpujob_operator.client.kube import GPU_NODES, JOBS, NODES, PODS
from tests.harness.http_api import HttpApi
from tests.harness.operator_process import Process, start_operator
from tests.harness.waiting import wait_until

GPUS = 48
HEALTHY_JOBS = 10
AGENT_SECONDS = 4.0


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _job(namespace: str, name: str, workers: int, image: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "queue": "default",
        "template": {"spec": {"containers": [{"name": "worker", "image": image}]}},
    }
    if workers > 1:
        spec["workers"] = workers
    else:
        spec["gpu"] = {"memory": "1Gi"}
        spec["sharing"] = {"mode": "Shared", "maxSlowdownPercent": 100}
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "generation": 1,
            "creationTimestamp": _now(),
        },
        "spec": spec,
    }


def _node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"gpujob.dev/managed": "true"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _now()}],
        },
    }


def _gpu_node(name: str) -> dict[str, Any]:
    gpu = {"uuid": f"GPU-{name}", "index": 0, "model": "A10", "memoryTotalBytes": 24 * 2**30}
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "observedAt": _now(),
            "sampleIntervalSeconds": 2,
            "gpus": [gpu | {"memoryUsedBytes": 0}],
        },
    }


class HttpWorld:
    def __init__(self, api: HttpApi) -> None:
        self.api = api
        self.operator: Process
        self._ended = threading.Event()
        self._agents = threading.Thread(target=self._read_gpus, daemon=True)

    def start(self) -> None:
        for number in range(GPUS):
            self.api.put(NODES, _node(f"n{number}"))
            self.api.put(GPU_NODES, _gpu_node(f"n{number}"))
        self._agents.start()

    def end(self) -> None:
        self._ended.set()
        self._agents.join()

    def _read_gpus(self) -> None:
        while not self._ended.wait(AGENT_SECONDS):
            for number in range(GPUS):
                self.api.put(GPU_NODES, _gpu_node(f"n{number}"))

    def submit(self, namespace: str, name: str, workers: int = 1, image: str = "any") -> None:
        self.api.put(JOBS, _job(namespace, name, workers, image))

    def pods(self, namespace: str) -> set[str]:
        names = (pod["metadata"] for pod in self.api.objects(PODS))
        return {one["name"] for one in names if one["namespace"] == namespace}

    def lists_of_pods(self) -> int:
        return sum(
            one.place.plural == "pods" and one.method == "GET" and not one.watch
            for one in list(self.api.requests)
            if not one.place.name
        )

    def creates(self, namespace: str) -> list[float]:
        return [
            one.at
            for one in list(self.api.requests)
            if (one.method, one.place.plural, one.place.namespace) == ("POST", "pods", namespace)
        ]

    def seconds_to_pod(self, prefix: str) -> list[float]:
        """Submits jobs of the healthy namespace one after the other."""
        found: list[float] = []
        for number in range(HEALTHY_JOBS):
            name = f"{prefix}-{number}"
            started = time.monotonic()
            self.submit("healthy", name)
            wait_until(lambda name=name: f"{name}-1-0" in self.pods("healthy"), seconds=60)
            found.append(time.monotonic() - started)
        return found


@contextmanager
def operator_world(folder: Path) -> Generator[HttpWorld]:
    with HttpApi().running() as api:
        world = HttpWorld(api)
        world.start()
        operator = start_operator(api.write_kubeconfig(folder / "kubeconfig"), folder)
        world.operator = operator
        try:
            operator.wait_for("leadership changed", leads=True)
            world.submit("healthy", "first")
            wait_until(lambda: "first-1-0" in world.pods("healthy"), seconds=60)
            yield world
            assert operator.alive
        finally:
            operator.stop()
            world.end()
