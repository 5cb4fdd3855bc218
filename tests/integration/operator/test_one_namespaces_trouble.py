"""The whole operator process beside a namespace in trouble: the others do not feel it (I15).

The API server is `tests.harness.http_api`: it refuses, is slow or loses answers in one namespace.
Bounds on times are several times what an idle machine takes, and are compared in one run with the
same jobs while all is well.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from gpujob_operator.act.kube import GPU_NODES, JOBS, NODES, PODS
from tests.harness.http_api import HttpApi
from tests.harness.http_api_objects import status_body
from tests.harness.operator_process import start_operator
from tests.harness.waiting import wait_until

GPUS = 48
HEALTHY_JOBS = 10
MEDIAN_SECONDS_MAX = 0.5
WORST_SECONDS_MAX = 1.5
AGENT_SECONDS = 4.0
WEBHOOK_DOWN = 'Internal error occurred: failed calling webhook "inject": no endpoints available'


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _job(namespace: str, name: str, workers: int = 1) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "queue": "default",
        "template": {"spec": {"containers": [{"name": "worker", "image": "any"}]}},
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


class _World:
    def __init__(self, api: HttpApi) -> None:
        self.api = api
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

    def submit(self, namespace: str, name: str, workers: int = 1) -> None:
        self.api.put(JOBS, _job(namespace, name, workers))

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
def _operator(folder: Path) -> Generator[_World]:
    with HttpApi().running() as api:
        world = _World(api)
        world.start()
        operator = start_operator(api.write_kubeconfig(folder / "kubeconfig"), folder)
        try:
            operator.wait_for("leadership changed", leads=True)
            world.submit("healthy", "first")
            wait_until(lambda: "first-1-0" in world.pods("healthy"), seconds=60)
            yield world
            assert operator.alive
        finally:
            operator.stop()
            world.end()


def _is_unhindered(well: list[float], beside: list[float]) -> None:
    """As fast as the promise says, or as this machine is while nothing is wrong."""
    assert median(beside) <= max(MEDIAN_SECONDS_MAX, 2 * median(well)), (well, beside)
    assert max(beside) <= max(WORST_SECONDS_MAX, 3 * max(well)), (well, beside)


@pytest.mark.slow
def test_a_webhook_that_is_down_is_felt_in_its_own_namespace_only(tmp_path: Path) -> None:
    with _operator(tmp_path) as world:
        well = world.seconds_to_pod("before")
        world.api.fail(
            PODS,
            "sick",
            500,
            status_body(500, "InternalError", WEBHOOK_DOWN),
            methods=["POST"],
        )
        lists = world.lists_of_pods()
        for number in range(60):
            world.submit("sick", f"job-{number}")
        wait_until(lambda: len(world.creates("sick")) >= 40, seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        assert world.lists_of_pods() == lists
        world.api.heal()
        wait_until(lambda: len(world.pods("sick")) >= 20, seconds=120)
        assert world.lists_of_pods() == lists


@pytest.mark.slow
def test_answers_that_are_lost_in_one_namespace_are_its_own_trouble(tmp_path: Path) -> None:
    """Nobody can say whether these pods were created: their names are asked after."""
    with _operator(tmp_path) as world:
        well = world.seconds_to_pod("before")
        for methods, after_effect in ((["POST"], True), (["GET"], False)):
            world.api.fail(PODS, "sick", 503, methods=methods, after_effect=after_effect)
        lists = world.lists_of_pods()
        for number in range(20):
            world.submit("sick", f"job-{number}")
        wait_until(lambda: len(world.creates("sick")) >= 20, seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        assert world.lists_of_pods() == lists


@pytest.mark.slow
def test_a_gang_whose_pods_are_slow_to_create_delays_nobody(tmp_path: Path) -> None:
    with _operator(tmp_path) as world:
        well = world.seconds_to_pod("before")
        world.api.delay(PODS, "sick", 0.8, methods=["POST"])
        started = time.monotonic()
        world.submit("sick", "gang", workers=25)
        wait_until(lambda: bool(world.creates("sick")), seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        wait_until(lambda: len(world.pods("sick")) == 25, seconds=60)
        assert time.monotonic() - started < 25 * 0.8, "side by side"
