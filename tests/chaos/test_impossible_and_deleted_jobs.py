"""Jobs that no cluster could run, and jobs that are taken away at every moment of their life."""

import time
from collections.abc import Generator
from typing import Any

import pytest

from gpujob_local.cluster.cluster import NodeOptions
from tests.harness.scene import JOBS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
# Long enough for many cycles; one write for the first answer and one for figures that moved.
WATCHED_SECONDS = 5.0
WRITES_MAX = 2
IMPOSSIBLE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "too-large": (
        {"gpu": {"memory": "5Gi"}, "sharing": {"mode": "Shared"}},
        # What is free of a card's 2 GiB moves in its last digit.
        ("5 GiB", "1.9"),
    ),
    "unknown-model": ({"gpu": {"models": ["H9000"]}}, ("H9000", "CPU card")),
    "nowhere": ({"pod": {"nodeSelector": {"zone": "moon"}}}, ("2 GPUs", "nodeSelector zone=moon")),
    "too-many": ({"gpusPerWorker": 16}, ("16", "2")),
}


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    with running_scene(chaos_options((NodeOptions("node-1", cards=2),))) as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without jobs; afterwards no promise may have been broken."""
    yield shared_scene
    shared_scene.clear()
    shared_scene.recorder.verify()


@pytest.mark.promise("I4", "I8", "I10")
def test_the_impossible_waits_with_its_numbers_and_writes_little(scene: Scene) -> None:
    """I4, I8, I10: others run on beside it, and its status is not written again and again."""
    for name, (spec, _words) in IMPOSSIBLE.items():
        scene.submit(name, **spec)
    for name in IMPOSSIBLE:
        scene.wait_phase(name, "Pending")
    before = writes(scene)
    began = time.monotonic()
    lives = 0
    while time.monotonic() - began < WATCHED_SECONDS:
        scene.submit(f"beside-{lives}")
        scene.finish_and_wait(f"beside-{lives}")
        lives += 1
    after = writes(scene)
    for name, (_spec, words) in IMPOSSIBLE.items():
        assert after[name] - before[name] <= WRITES_MAX, name
        waiting = scene.condition(name, "Scheduled")
        assert (waiting["status"], waiting["reason"]) == ("False", "Unsatisfiable")
        for word in words:
            assert word in waiting["message"], name
        assert scene.pod_names(name) == []
    assert lives > 0


def writes(scene: Scene) -> dict[str, int]:
    """Revisions so far of the impossible jobs, by name."""
    counted = scene.recorder.fold().job_revisions
    jobs = {name: scene.job(name) or {} for name in IMPOSSIBLE}
    return {name: counted[job["metadata"]["uid"]] for name, job in jobs.items()}


@pytest.mark.promise("I7")
def test_a_job_may_be_deleted_at_every_moment(scene: Scene) -> None:
    """I7: while it waits, starts, runs, stops and when it is finished."""
    scene.submit("waits", gpu={"models": ["H9000"]})
    scene.submit("finished")
    scene.finish_and_wait("finished")
    scene.submit_command("starts", ["python"], image="registry.example/none:1")
    scene.wait(lambda: scene.condition("starts", "Running")["reason"] == "ErrImagePull", "starts")
    scene.submit("stops", "*=ignore-term")
    scene.wait_steps("stops")
    scene.client.merge(f"{JOBS}/stops", {"spec": {"suspend": True}})
    scene.wait_phase("stops", "Stopping")
    for name in ("waits", "finished", "starts", "stops"):
        scene.delete(name)
        assert scene.job(name) is None
    scene.submit("runs")
    scene.wait_steps("runs")
    scene.delete("runs")
    for name in ("waits", "finished", "starts", "stops", "runs"):
        scene.wait(lambda name=name: not scene.pods(name), f"no pod of {name}")


def test_the_same_name_again_is_another_job(scene: Scene) -> None:
    """The pods of the job before have the very names that the new one needs."""
    first = scene.submit("phoenix", "*=ignore-term")
    scene.wait_steps("phoenix")
    scene.delete("phoenix")
    second = scene.submit("phoenix")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    scene.wait_steps("phoenix")
    (pod,) = scene.pods("phoenix")
    assert pod["metadata"]["labels"]["gpujob.dev/job-uid"] == second["metadata"]["uid"]
    scene.finish_and_wait("phoenix")
    assert scene.pod_names("phoenix") == ["phoenix-1-0"]


@pytest.mark.promise("I7")
def test_names_that_come_and_go_quickly_leave_nothing(scene: Scene) -> None:
    for _ in range(5):
        scene.submit("flicker")
        scene.delete("flicker")
    scene.submit("flicker")
    scene.finish_and_wait("flicker")
    assert scene.status("flicker")["attempt"] == 1
