"""What a node has left beside the pods that are bound to it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpujob_operator.decide.model.pod_requests import WHOLE_NODE, pod_requests
from gpujob_operator.decide.model.snapshot import PODS_UNLIMITED, NodeCondition, Taint
from gpujob_operator.read.nodes import cached_node, with_pods
from tests.harness.manifests import node_manifest


def _container(cpu: str, memory: str, **fields: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}


@pytest.mark.parametrize(
    "spec",
    [
        *({"containers": [_container(value, "1Gi")]} for value in ("x", "-1", "9" * 40)),
        *({"containers": [{"resources": value}]} for value in (1, [], {"requests": 3})),
        {"containers": {"a": 1}},
        {"containers": [_container("1", "1"), 7]},
        {"containers": [], "overhead": {"memory": float("nan")}},
        {"containers": [], "initContainers": "x"},
    ],
)
def test_a_pod_whose_requests_cannot_be_read_takes_the_whole_node(spec: dict[str, Any]) -> None:
    used = pod_requests(spec)
    assert used == WHOLE_NODE
    view = with_pods(cached_node(node_manifest()), 1, used.cpu_milli, used.memory_bytes)
    assert (view.cpu_milli_free, view.memory_bytes_free) == (0, 0)


@pytest.mark.parametrize("taints", ["x", [7], [{}], [{"key": 3}], {"key": "a"}])
def test_a_node_whose_taints_cannot_be_read_takes_nobody(taints: Any) -> None:
    assert cached_node(node_manifest(taints=taints)).empty.unschedulable


@pytest.mark.parametrize("value", ["x", {}, 10**400, float("inf"), -5])
def test_a_node_whose_room_cannot_be_read_has_none(value: Any) -> None:
    view = cached_node(node_manifest(cpu=value, memory=value)).empty
    assert (view.cpu_milli_free, view.memory_bytes_free) == (0, 0)


def test_node_less_its_pods() -> None:
    node = cached_node(node_manifest(cpu="8", memory="32Gi", pods="29"))
    view = with_pods(node, 17, 3000, 2 * 1024**3)
    assert (view.cpu_milli_allocatable, view.cpu_milli_free) == (8000, 5000)
    assert view.memory_bytes_free == 30 * 1024**3
    assert (view.pods_allocatable, view.pods_free) == (29, 12)


def test_an_overfull_node_has_nothing_free() -> None:
    view = with_pods(cached_node(node_manifest(cpu="1", pods="2")), 3, 5000, 0)
    assert (view.cpu_milli_free, view.pods_free) == (0, 0)


def test_a_node_has_what_it_offers_beside_cpu_memory_and_pods() -> None:
    manifest = node_manifest(pods="110")
    manifest["status"]["allocatable"] |= {"rdma/hca": "2", "hugepages-2Mi": "0", "x.io/y": "z"}
    assert cached_node(manifest).empty.others_allocatable == {"rdma/hca": 2}


@pytest.mark.parametrize(("pods", "free"), [(None, PODS_UNLIMITED), ("x", 0), (110, 110)])
def test_the_pods_of_a_node_are_unlimited_only_without_a_limit(pods: Any, free: int) -> None:
    assert cached_node(node_manifest(pods=pods)).empty.pods_free == free


def test_taints_spot_and_cordon() -> None:
    taint = {"key": "gpujob.dev/reclaim", "value": "soon", "effect": "NoSchedule"}
    manifest = node_manifest(unschedulable=True, taints=[taint], labels={"gpujob.dev/spot": "true"})
    view = cached_node(manifest).empty
    assert view.taints == (Taint("gpujob.dev/reclaim", "NoSchedule", "soon"),)
    assert view.spot
    assert view.unschedulable
    assert view.ready
    assert view.not_ready_since is None


def test_only_conditions_that_may_announce_the_end_are_kept() -> None:
    manifest = node_manifest(ready="False")
    conditions = manifest["status"]["conditions"]
    conditions[0]["message"] = "node is shutting down"
    conditions += [
        {"type": "Terminating", "status": "True"},
        {"type": "PreemptionScheduled", "status": "False", "message": "no"},
        {"type": "MemoryPressure", "status": "True", "message": "full"},
        {"type": "VMEventScheduled", "status": "True", "message": ["odd"]},
        "odd",
    ]
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T02:00:00Z"
    view = cached_node(manifest).empty
    assert view.conditions == (
        NodeCondition("Ready", "node is shutting down"),
        NodeCondition("Terminating"),
        NodeCondition("VMEventScheduled"),
    )
    assert view.deletion_at == datetime(2026, 1, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_not_ready_says_since_when(ready: str) -> None:
    view = cached_node(node_manifest(ready=ready)).empty
    assert not view.ready
    assert view.not_ready_since == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_a_node_that_never_said_anything_is_not_ready_since_its_creation() -> None:
    manifest = node_manifest()
    manifest["status"] = {}
    view = cached_node(manifest).empty
    assert (view.ready, view.not_ready_since) == (False, datetime(2026, 1, 1, tzinfo=UTC))
    assert view.cpu_milli_allocatable == 0
