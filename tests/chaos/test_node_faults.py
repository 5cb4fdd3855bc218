"""Nodes that die, are reclaimed, go unmeasured, or whose GPUs fail; one cluster for all.

What NVML says of failing GPUs is scripted; nodes, pods and processes are real ones.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.codec import parse_time
from gpujob_api.quantities import GIB, MIB
from gpujob_local.cluster.cluster import NodeOptions
from tests.harness.scene import (
    GPU_NODES,
    STALE_SECONDS,
    Scene,
    chaos_options,
    running_scene,
)
from tests.harness.scripted_agent import scripted_agent

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
NODES = ("node-1", "node-2")
HEARD_SECONDS = 2.0
Json = dict[str, Any]


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    nodes = tuple(NodeOptions(name, cards=2) for name in NODES)
    with running_scene(chaos_options(nodes)) as scene:
        scene.create_claim("checkpoints")
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one with all nodes up and no jobs; afterwards no promise may have been broken."""
    shared_scene.wait(lambda: all_measured(shared_scene), "all nodes are ready and measured")
    yield shared_scene
    for name in NODES:
        if name not in shared_scene.cluster.children:
            shared_scene.cluster.start_node(name)
    shared_scene.clear()
    shared_scene.recorder.verify()


def all_measured(scene: Scene) -> bool:
    nodes = scene.client.get("/api/v1/nodes")["items"]
    ready = [node["metadata"]["name"] for node in nodes if is_ready(node)]
    found = [gpu for name in NODES for gpu in gpus(scene, name)]
    return sorted(ready) == list(NODES) and len(found) == 4 and all(map(is_healthy, found))


def is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    tainted = any(taint["key"] == "gpujob.dev/reclaim" for taint in node["spec"].get("taints", ()))
    return not tainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_healthy(gpu: Json) -> bool:
    return gpu.get("healthy", True)


def gpus(scene: Scene, node: str) -> list[Json]:
    for item in scene.client.get(GPU_NODES)["items"]:
        if item["metadata"]["name"] == node:
            return item.get("status", {}).get("gpus", [])
    return []


def other(node: str) -> str:
    return next(name for name in NODES if name != node)


# Nodes


@pytest.mark.promise("I3")
def test_a_dead_node_is_not_believed_dead_until_it_is_proven(scene: Scene) -> None:
    """I3: its pods may run on behind a broken network; the end of the Node object proves it."""
    scene.submit("survivor", checkpoint={"volumeClaimName": "checkpoints"})
    scene.wait_steps("survivor", above=20)
    node, _gpu = scene.place("survivor")
    scene.cluster.kill_node(node)
    path = f"/api/v1/nodes/{node}"
    scene.wait(lambda: not is_ready(scene.client.get(path)), f"{node} is not ready")
    # Somebody else comes and goes: the operator had every chance to do something rash.
    scene.submit("beside")
    scene.finish_and_wait("beside")
    assert scene.place("beside")[0] == other(node)
    assert scene.pod_names("survivor") == ["survivor-1-0"]
    saved = scene.status("survivor")["checkpoint"]["step"]
    scene.client.delete(path)
    scene.wait(lambda: scene.place("survivor")[0] == other(node), "it is placed elsewhere")
    scene.wait(lambda: scene.status("survivor").get("resumedFromStep", 0) >= saved, "it resumes")
    scene.finish_and_wait("survivor")
    assert scene.status("survivor")["attempt"] == 2
    assert scene.counters("survivor") == {"nodeLost": 1}


@pytest.mark.promise("I3")
def test_a_node_that_restarts_has_lost_its_jobs_attempt(scene: Scene) -> None:
    """Nobody saw how its processes ended; it was not the job's fault, and uses no retry."""
    claim = {"volumeClaimName": "checkpoints"}
    scene.submit("rebooted", checkpoint=claim, retry={"limit": 0})
    scene.wait_steps("rebooted", above=20)
    node, _gpu = scene.place("rebooted")
    scene.cluster.kill_node(node)
    scene.cluster.start_node(node)
    scene.wait(lambda: scene.status("rebooted").get("resumedFromStep", 0) > 0, "it resumes")
    scene.finish_and_wait("rebooted")
    assert scene.status("rebooted")["attempt"] == 2
    assert scene.counters("rebooted") == {"nodeLost": 1}


@pytest.mark.promise("I13")
def test_a_node_reclaimed_while_a_job_starts_is_left(scene: Scene) -> None:
    """The pod waits for an image, so that the attempt is Starting when the notice comes."""
    scene.submit_command("starting", ["python"], image="registry.example/none:1")
    scene.wait(
        lambda: scene.condition("starting", "Running")["reason"] == "ErrImagePull", "it starts"
    )
    assert scene.phase("starting") == "Starting"
    node, _gpu = scene.place("starting")
    scene.cluster.reclaim(node, notice_seconds=1, grace_seconds=2)
    scene.wait(lambda: scene.place("starting")[0] == other(node), "it is placed elsewhere")
    assert scene.status("starting")["attempt"] == 2
    assert scene.counters("starting") == {"interruptions": 1}


@pytest.mark.promise("I6")
def test_a_reclaimed_nodes_running_job_keeps_its_last_step(scene: Scene) -> None:
    scene.submit("mover", checkpoint={"volumeClaimName": "checkpoints"})
    scene.wait_steps("mover")
    node, _gpu = scene.place("mover")
    scene.cluster.reclaim(node, notice_seconds=3, grace_seconds=2)
    scene.wait(lambda: scene.place("mover")[0] == other(node), "it is placed elsewhere")
    scene.wait(lambda: scene.status("mover").get("resumedFromStep") is not None, "it resumes")
    assert scene.status("mover")["resumedFromStep"] > 0
    scene.finish_and_wait("mover")
    assert scene.counters("mover") == {"interruptions": 1}


# Measurements


@pytest.mark.promise("I14")
def test_without_an_agent_nothing_is_placed_and_nothing_is_stopped(scene: Scene) -> None:
    """I14."""
    scene.submit("runs-on")
    scene.wait_steps("runs-on")
    with without_agents(scene):
        # The operator counts from when it heard of a reading, which is a little later.
        old = STALE_SECONDS + HEARD_SECONDS
        scene.wait(lambda: all(age(scene, node) > old for node in NODES), "all is stale")
        scene.submit("waits")
        scene.wait(lambda: scene.phase("waits") == "Pending", "it is told to wait")
        message = scene.condition("waits", "Scheduled")["message"]
        assert "readings are" in message
        assert f"(limit {STALE_SECONDS:.0f} s)" in message
        assert scene.phase("runs-on") == "Running"
        step = scene.step("runs-on")
        scene.wait(lambda: scene.step("runs-on") > step, "the running job goes on")
        assert scene.pod_names("waits") == []
    scene.finish_and_wait("waits", "runs-on")
    assert scene.pod_names("runs-on") == ["runs-on-1-0"]
    assert scene.counters("runs-on") == {}


@contextmanager
def without_agents(scene: Scene) -> Generator[None]:
    for node in NODES:
        scene.cluster.kill_agent(node)
    try:
        yield
    finally:
        for node in NODES:
            scene.cluster.start_agent(node)


def age(scene: Scene, node: str) -> float:
    """Seconds since the node's last measurement."""
    observed = scene.client.get(f"{GPU_NODES}/{node}")["status"]["observedAt"]
    return (datetime.now(UTC) - parse_time(observed)).total_seconds()


# GPUs


def scripted(scene: Scene, node: str, **broken: Json) -> list[Json]:
    """The node's GPUs as they are, with one of them changed."""
    found: list[Json] = [
        {"uuid": uuid, "model": "CPU card", "memoryTotalBytes": 2 * GIB, "memoryUsedBytes": MIB}
        for uuid in scene.cluster.cards(node)
    ]
    return [gpu | broken.get(gpu["uuid"], {}) for gpu in found]


def is_scripted(scene: Scene, node: str) -> bool:
    status = scene.client.get(f"{GPU_NODES}/{node}")["status"]
    return status.get("driverVersion") == "scripted"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "cards.json"


@pytest.mark.parametrize(
    "fault",
    [{"xids": [79]}, {"errors": {"*": 15}}],
    ids=["XID 79", "GPU is lost"],
)
def test_a_job_leaves_a_gpu_that_fails(scene: Scene, script: Path, fault: Json) -> None:
    scene.submit("patient", checkpoint={"volumeClaimName": "checkpoints"})
    scene.wait_steps("patient")
    node, gpu = scene.place("patient")
    script.write_text(json.dumps({"cards": scripted(scene, node)}))
    with scripted_agent(scene.cluster, node, script):
        scene.wait(lambda: is_scripted(scene, node), "the agent has seen the GPU alive")
        broken = {"cards": scripted(scene, node, **{gpu: fault})}
        script.write_text(json.dumps(broken))
        scene.wait(lambda: scene.place("patient")[1] not in ("", gpu), "it has another GPU")
        scene.finish_and_wait("patient")
    assert scene.counters("patient") == {"interruptions": 1, "unhealthyGpus": 1}


def test_an_agent_that_starts_while_a_gpu_is_lost_still_lists_it(
    scene: Scene, script: Path
) -> None:
    """The one before it knew the GPU; whoever is on it must not seem to be nowhere."""
    node = NODES[0]
    lost, well = scene.cluster.cards(node)
    script.write_text(json.dumps({"cards": scripted(scene, node, **{lost: {"errors": {"*": 15}}})}))
    with scripted_agent(scene.cluster, node, script):
        # An earlier agent of a script may have published last.
        scene.wait(
            lambda: (
                {gpu["uuid"]: is_healthy(gpu) for gpu in gpus(scene, node)}
                == {lost: False, well: True}
            ),
            "the new agent publishes both",
        )


@pytest.mark.promise("I1", "I10")
@pytest.mark.parametrize(
    "reading",
    [
        {"memoryUsedBytes": float("nan")},
        {"memoryUsedBytes": 64 * GIB},
        {"utilizationPercent": float("nan"), "temperatureCelsius": float("inf")},
        {"memoryTotalBytes": 0},
    ],
    ids=["NaN bytes", "more than there is", "NaN percent", "no memory at all"],
)
def test_readings_of_no_sense_break_nothing(scene: Scene, script: Path, reading: Json) -> None:
    """The agent lives, the operator lives, the running job goes on, another one finds a place."""
    scene.submit("runs-on")
    scene.wait_steps("runs-on")
    node, gpu = scene.place("runs-on")
    script.write_text(json.dumps({"cards": scripted(scene, node, **{gpu: reading})}))
    with scripted_agent(scene.cluster, node, script) as agent:
        scene.wait(lambda: is_scripted(scene, node) or not agent.alive(), "the agent publishes")
        scene.submit("beside")
        scene.finish_and_wait("beside", "runs-on")
        assert agent.alive(), agent.log_tail()
    assert scene.cluster.children["operator"].alive()
    assert scene.pod_names("runs-on") == ["runs-on-1-0"]
