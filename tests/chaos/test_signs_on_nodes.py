"""Every sign that a node is about to go, put on a real Node: the job moves and keeps its step.

One job moves from node to node. Its signs are set as their setters would, through the API server.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from gpujob_local.cluster.cluster import NodeOptions
from tests.harness.scene import PODS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
NODES = ("node-1", "node-2")
STRATEGIC = "application/strategic-merge-patch+json"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
AWS = "aws-node-termination-handler"
Json = dict[str, Any]

TAINTS = {
    f"{AWS}/spot-itn": ("evt-0a1b2c", "NodeReclaimed"),
    "cloud.google.com/impending-node-termination": ("", "NodeDrained"),
    "karpenter.sh/disrupted": ("", "NodeDrained"),
    "karpenter.sh/disruption": ("disrupting", "NodeDrained"),
    "ToBeDeletedByClusterAutoscaler": ("1767225600", "NodeDrained"),
    f"{AWS}/asg-lifecycle-termination": ("evt-0a1b2c", "NodeDrained"),
    f"{AWS}/scheduled-maintenance": ("evt-0a1b2c", "NodeDrained"),
    "remediator.kubernetes.azure.com/unschedulable": ("", "NodeDrained"),
}
CONDITIONS = [
    ("PreemptionScheduled", "the machine will be evicted", "NodeReclaimed"),
    ("VMEventScheduled", "Preempt Scheduled: Mon, 01 Jan 2029 10:00:00 GMT", "NodeReclaimed"),
    ("VMEventScheduled", "Reboot Scheduled: Mon, 01 Jan 2029 10:00:00 GMT", "NodeDrained"),
    ("Terminating", "the machine is marked for termination", "NodeDrained"),
]


@pytest.fixture(scope="module")
def scene() -> Generator[Scene]:
    nodes = tuple(NodeOptions(name, cards=1) for name in NODES)
    with running_scene(chaos_options(nodes)) as scene:
        scene.create_claim("checkpoints")
        scene.submit("mover", checkpoint={"volumeClaimName": "checkpoints"})
        yield scene
        scene.finish_and_wait("mover")
        assert set(scene.counters("mover")) == {"interruptions"}
        scene.recorder.verify()


def _other(node: str) -> str:
    return next(name for name in NODES if name != node)


def _patch(scene: Scene, path: str, body: Json) -> None:
    scene.client.request("PATCH", path, body, STRATEGIC)


@contextmanager
def _moved(scene: Scene, reason: str = "") -> Generator[str]:
    """Inside, a sign is set on the job's node; afterwards the job has moved. `reason`: of the stop;
    "" where the worker may have ended before the operator looked.
    """
    scene.wait_steps("mover")
    node, _gpu = scene.place("mover")
    attempt, step = scene.status("mover")["attempt"], scene.step("mover")
    yield node
    scene.wait(lambda: scene.place("mover")[0] == _other(node), f"it leaves {node}")
    scene.wait(lambda: scene.status("mover").get("resumedFromStep") is not None, "it resumes")
    assert scene.status("mover")["attempt"] == attempt + 1
    assert scene.status("mover")["resumedFromStep"] >= step
    if not reason:
        return
    events = scene.client.get("/api/v1/namespaces/default/events")["items"]
    texts = [event["message"] for event in events if event["reason"] == f"Stopping{reason}"]
    assert any(f"attempt {attempt}," in text for text in texts), texts


@pytest.mark.parametrize("key", TAINTS)
def test_a_taint(scene: Scene, key: str) -> None:
    value, reason = TAINTS[key]
    with _moved(scene, reason) as node:
        taint = {"key": key, "value": value, "effect": "NoSchedule"}
        _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"taints": None}})


@pytest.mark.parametrize(("kind", "message", "reason"), CONDITIONS)
def test_a_condition(scene: Scene, kind: str, message: str, reason: str) -> None:
    condition = {"type": kind, "status": "True", "reason": "Test", "message": message}
    with _moved(scene, reason) as node:
        path = f"/api/v1/nodes/{node}/status"
        _patch(scene, path, {"status": {"conditions": [condition]}})
    gone = {"type": kind, "status": "False", "reason": "Test", "message": ""}
    _patch(scene, path, {"status": {"conditions": [gone]}})


def test_the_label_of_a_driver_upgrade(scene: Scene) -> None:
    with _moved(scene, "NodeDrained") as node:
        path = f"/api/v1/nodes/{node}"
        _patch(scene, path, {"metadata": {"labels": {UPGRADE: "cordon-required"}}})
    _patch(scene, path, {"metadata": {"labels": {UPGRADE: "upgrade-done"}}})


def test_an_eviction(scene: Scene) -> None:
    """What `kubectl drain` and every autoscaler do: a cordon, then the eviction API."""
    with _moved(scene) as node:
        _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        (name,) = scene.pod_names("mover")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        scene.client.create(f"{PODS}/{name}/eviction", eviction)
    _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})


def test_a_taint_that_evicts(scene: Scene) -> None:
    with _moved(scene) as node:
        taint = {"key": "example.com/broken", "effect": "NoExecute"}
        _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    _patch(scene, f"/api/v1/nodes/{node}", {"spec": {"taints": None}})


def test_the_deletion_of_a_node_that_a_finalizer_holds(scene: Scene) -> None:
    """As Karpenter does it. Afterwards the node comes back."""
    with _moved(scene, "NodeDrained") as node:
        path = f"/api/v1/nodes/{node}"
        scene.client.merge(path, {"metadata": {"finalizers": ["example.com/termination"]}})
        scene.client.delete(path)
    scene.cluster.kill_node(node)
    scene.client.merge(path, {"metadata": {"finalizers": None}})
    scene.cluster.start_node(node)
