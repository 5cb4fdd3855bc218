"""The API server goes away for half a minute: workers go on, the operator catches up by itself.

A cluster of its own: the controllers, too, take their time to come back.
"""

import json
import time
from collections.abc import Generator

import pytest

from gpujob_local.cluster.cluster import NodeOptions
from gpujob_local.processes.processes import Child
from tests.harness.scene import Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
OUTAGE_SECONDS = 30.0
STOP_SECONDS = 30.0
NAMES = ("ends-in-it", "outlives-it")


@pytest.fixture(scope="module")
def scene() -> Generator[Scene]:
    # Nodes must not be taken for lost because nobody could hear them.
    with running_scene(chaos_options((NodeOptions("node-1"),), node_grace_seconds=60)) as scene:
        yield scene
        scene.clear()
        scene.recorder.verify()


@pytest.mark.promise("I5", "I8")
def test_workers_go_on_without_an_api_server(scene: Scene) -> None:
    """I5, I8: one ends during the outage, one after it; neither is started a second time. Streams,
    Lease and kopf recover in the same process, which then takes up new jobs and stops in order.
    """
    operator = scene.cluster.children["operator"]
    for name in NAMES:
        scene.submit(name)
        scene.wait_steps(name)
    pods = {name: scene.pods(name)[0] for name in NAMES}
    step = scene.step("outlives-it")
    with scene.without_api_server():
        stopped_at = time.monotonic()
        scene.finish("ends-in-it")
        scene.wait(lambda: not scene.worker_pids(pods["ends-in-it"]), "a worker ends unseen")
        scene.wait(lambda: gave_up(operator), "the operator knows that it leads no more")
        scene.wait(lambda: time.monotonic() - stopped_at >= OUTAGE_SECONDS, "the end of the outage")
        assert scene.worker_pids(pods["outlives-it"])
        assert operator.alive()
    scene.wait_phase("ends-in-it", "Succeeded")
    scene.submit("after")
    scene.wait_steps("after")
    scene.finish_and_wait("outlives-it", "after")
    assert scene.step("outlives-it") > step
    for name in (*NAMES, "after"):
        assert scene.pod_names(name) == [f"{name}-1-0"]
        assert scene.counters(name) == {}
    assert scene.cluster.children["operator"] is operator
    operator.process.terminate()
    assert operator.process.wait(STOP_SECONDS) == 0


def gave_up(operator: Child) -> bool:
    lines = [json.loads(line) for line in operator.log.read_text().splitlines() if line[:1] == "{"]
    said = [line for line in lines if line["message"] == "leadership changed"]
    return bool(said) and said[-1]["leads"] is False
