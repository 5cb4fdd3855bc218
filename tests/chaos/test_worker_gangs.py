"""Jobs of several workers: all or none, together, by name; and what is left of a whole namespace.

One cluster for all; every test ends with all revisions checked.
"""

import signal
from collections.abc import Generator

import pytest
import yaml

from gpujob_local.cluster.cluster import NodeOptions
from gpujob_local.cluster.options import DEFAULT_IMAGES
from gpujob_local.control_plane.manifests import REPOSITORY
from tests.harness.scene import OURS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
NODES = (NodeOptions("node-1", cards=2), NodeOptions("node-2", cards=1))
SERVICES = "/api/v1/namespaces/default/services"
CLAIM = {"volumeClaimName": "checkpoints"}


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    with running_scene(chaos_options(NODES, images=DEFAULT_IMAGES)) as scene:
        scene.create_claim("checkpoints")
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without jobs; afterwards no promise may have been broken."""
    yield shared_scene
    shared_scene.clear()
    shared_scene.recorder.verify()


def gpus_of(scene: Scene, name: str) -> list[str]:
    placement = scene.status(name).get("placement") or {"workers": []}
    return [uuid for worker in placement["workers"] for uuid in worker["gpus"]]


@pytest.mark.promise("I6")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_gang_ends_and_begins_again_together(scene: Scene, rank: int) -> None:
    """Whoever is killed: no worker goes on alone, and all go on behind the checkpoint."""
    scene.submit("gang", workers=2, sharing={"mode": "Exclusive"}, checkpoint=CLAIM)
    scene.wait_steps("gang", above=20)
    assert scene.pod_names("gang") == ["gang-1-0", "gang-1-1"]
    assert len(set(gpus_of(scene, "gang"))) == 2
    scene.signal_worker("gang", signal.SIGKILL, rank)
    scene.wait(lambda: scene.status("gang").get("attempt") == 2, "a second attempt")
    first = [pod for pod in scene.pods("gang") if pod["metadata"]["name"].startswith("gang-1-")]
    assert not any(scene.worker_pids(pod) for pod in first)
    scene.wait(lambda: scene.status("gang").get("resumedFromStep", 0) > 0, "it resumes")
    assert scene.pod_names("gang")[-2:] == ["gang-2-0", "gang-2-1"]
    scene.finish_and_wait("gang")
    assert scene.counters("gang") == {"errors": 1}


@pytest.mark.promise("I2", "I4")
def test_of_two_gangs_that_each_half_fit_one_runs_at_a_time(scene: Scene) -> None:
    """Three GPUs, twice two workers: neither holds a GPU that it cannot use."""
    for name in ("one", "other"):
        scene.submit(name, workers=2, sharing={"mode": "Exclusive"})
    scene.wait(lambda: "Running" in map(scene.phase, ("one", "other")), "one of them runs")
    # Those of the same second have no order but that of their UIDs.
    first, second = sorted(("one", "other"), key=lambda name: scene.phase(name) != "Running")
    scene.wait_steps(first)
    scene.wait_phase(second, "Pending")
    waiting = scene.condition(second, "Scheduled")
    assert (waiting["status"], waiting["reason"]) == ("False", "InsufficientCapacity")
    assert "capacity for 1 of 2 workers" in waiting["message"]
    assert (gpus_of(scene, second), scene.pod_names(second)) == ([], [])
    # The GPU that is left is nobody's: a small job behind them gets it.
    scene.submit("small")
    scene.finish_and_wait("small")
    scene.finish_and_wait(first)
    scene.wait_steps(second)
    assert len(set(gpus_of(scene, second))) == 2
    scene.finish_and_wait(second)
    assert scene.counters(second) == {}


def test_two_workers_of_torch_find_each_other(scene: Scene) -> None:
    """The example as it is: a rendezvous by name, gradients shared, equal weights."""
    job = yaml.safe_load((REPOSITORY / "examples" / "together.yaml").read_text())
    scene.create_job(job)
    scene.wait_phase("together", "Succeeded")
    service = f"gpujob-{scene.uid('together')}"
    assert scene.get(f"{SERVICES}/{service}") is not None
    logs = [scene.cluster.kubectl("logs", f"together-1-{rank}").stdout for rank in (0, 1)]
    weights = [log.split("weights sha256 ")[1].split()[0] for log in logs]
    assert weights[0] == weights[1]
    for rank, log in enumerate(logs):
        assert f"worker {rank} of 2: step 20 loss" in log
    scene.delete("together")
    scene.wait(lambda: scene.get(f"{SERVICES}/{service}") is None, "its service goes with it")


@pytest.mark.promise("I7")
def test_a_namespace_that_goes_takes_all_with_it(scene: Scene) -> None:
    """I7: its jobs run while it goes; their processes end, and their GPUs are free again."""
    scene.submit("elsewhere")
    scene.wait_steps("elsewhere")
    scene.client.create("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
    doomed = scene.in_namespace("doomed")
    doomed.create_claim("checkpoints")
    doomed.submit("runs", workers=2, sharing={"mode": "Exclusive"}, checkpoint=CLAIM)
    doomed.submit("waits", gpu={"models": ["H9000"]})
    doomed.wait_steps("runs")
    pods = doomed.pods("runs")
    volume = scene.cluster.volume("checkpoints", "doomed")
    assert len(pods) == 2
    assert any(volume.iterdir())
    scene.client.delete("/api/v1/namespaces/doomed")
    scene.wait(lambda: scene.get("/api/v1/namespaces/doomed") is None, "the namespace is gone")
    assert not any(scene.worker_pids(pod) for pod in pods)
    left = [left_of(scene, "doomed", path) for path in (f"{OURS}/gpujobs", "/api/v1/pods")]
    assert left == [[], []]
    scene.wait(lambda: not volume.exists(), "the volume is gone")
    scene.submit("next", workers=2, sharing={"mode": "Exclusive"})
    scene.wait_steps("next")
    scene.finish_and_wait("next", "elsewhere")
    assert scene.counters("elsewhere") == {}


def left_of(scene: Scene, namespace: str, path: str) -> list[str]:
    """Names of what there is of a kind in a namespace."""
    items = scene.client.get(path)["items"]
    found = [item["metadata"] for item in items]
    return [one["name"] for one in found if one["namespace"] == namespace]
