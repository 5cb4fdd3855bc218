"""Two namespaces, one of them hostile or in trouble: the other's jobs live as if it were not there.

The API server, its webhooks and its rules are real; only kubelets of hostile pods are played.
"""

import json
from collections.abc import Generator

import pytest

from gpujob_local.cluster.options import NodeOptions
from tests.harness.scene import IMAGE, JOBS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
FINALIZER = "tests.example/keep"
# A number that no float holds: what is written to a termination log is anybody's choice.
BEYOND_FLOAT = '{"attempt":1,"phase":"training","loss":1' + "0" * 400 + "}"


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    with running_scene(chaos_options((NodeOptions("node-1", cards=2),), audit=True)) as scene:
        scene.create_namespace("hostile")
        scene.create_namespace("sick")
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without jobs; afterwards no promise may have been broken."""
    yield shared_scene
    shared_scene.take_impostors()
    shared_scene.clear()
    shared_scene.recorder.verify()


def test_no_foreign_pod_speaks_for_a_job(scene: Scene) -> None:
    """I3, I4, I5, I15: labels, names and exit codes of pods that are not ours decide nothing."""
    scene.submit("victim")
    scene.wait_steps("victim")
    pods = [
        scene.pretend("victim", "x-1-0", "hostile"),
        scene.pretend("victim", "victim-1-0", "hostile"),
        scene.pretend("victim", "x-1-0", "default"),
        scene.pretend("victim", "x-2-0", "hostile"),
    ]
    for pod, code in zip(pods, (0, 1, 1, None), strict=True):
        scene.say(pod, code, BEYOND_FLOAT)
    # Whatever they say of GPUs, there is room on the other one.
    scene.submit("next", sharing={"mode": "Exclusive"})
    scene.wait_steps("next")
    steps = scene.step("victim")
    scene.wait_steps("victim", above=steps)
    scene.finish_and_wait("victim", "next")
    assert scene.status("victim")["attempt"] == 1
    assert scene.counters("victim") == {}
    there = scene.client.get("/api/v1/namespaces/hostile/pods")["items"]
    assert sorted(pod["metadata"]["name"] for pod in there) == ["victim-1-0", "x-1-0", "x-2-0"]


def test_last_words_that_no_float_holds_stop_nobody(scene: Scene) -> None:
    """I10, I15: of a worker of ours. The operator goes on, and so does everybody else."""
    words = json.dumps(BEYOND_FLOAT)
    program = f"open('/dev/termination-log', 'w').write({words}); raise SystemExit(1)"
    scene.submit_command("odd", ["python", "-c", program], retry={"limit": 0})
    scene.wait_phase("odd", "Failed")
    scene.submit("beside")
    scene.finish_and_wait("beside")


def test_a_container_beside_the_worker_may_stay(scene: Scene) -> None:
    """I5: the worker's end is the end; what runs on beside it is stopped and holds nothing."""
    proxy = {"name": "proxy", "image": IMAGE, "command": ["sleep", "3600"]}
    scene.submit("meshed", beside=[proxy], sharing={"mode": "Exclusive"})
    scene.wait_steps("meshed")
    scene.finish_and_wait("meshed")
    assert scene.status("meshed")["attempt"] == 1
    scene.wait(lambda: all(is_over(pod) for pod in scene.pods("meshed")), "its pod is stopped")


def is_over(pod: dict[str, object]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")  # type: ignore[index]


def test_a_job_that_is_deleted_and_kept_holds_nothing(scene: Scene) -> None:
    """I7, I15: its pods end, and its GPUs are free for others, while the object stays."""
    for name in ("kept-0", "kept-1"):
        scene.submit(name, sharing={"mode": "Exclusive"})
        scene.client.merge(f"{JOBS}/{name}", {"metadata": {"finalizers": [FINALIZER]}})
        scene.wait_steps(name)
    try:
        for name in ("kept-0", "kept-1"):
            scene.delete(name)
        scene.submit("next", sharing={"mode": "Exclusive"})
        scene.wait_steps("next")
        scene.finish_and_wait("next")
        assert scene.job("kept-0") is not None
    finally:
        for name in ("kept-0", "kept-1"):
            scene.client.merge(f"{JOBS}/{name}", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("grace_seconds", [1, 8])
def test_the_grace_that_is_given_is_the_one_that_was_told(scene: Scene, grace_seconds: int) -> None:
    """I13: of the template, shorter and longer than the operator's own."""
    name = f"grace-{grace_seconds}"
    scene.submit(name, "*=ignore-term", pod={"terminationGracePeriodSeconds": grace_seconds})
    scene.wait_steps(name)
    scene.client.merge(f"{JOBS}/{name}", {"spec": {"suspend": True}})
    given: list[int] = []

    def is_deleted() -> bool:
        for pod in scene.pods(name):
            given.extend([pod["metadata"].get("deletionGracePeriodSeconds", -1)])
        return any(seconds >= 0 for seconds in given)

    scene.wait(is_deleted, f"{name} is asked to go")
    assert max(grace_seconds - 2, 1) <= max(given) <= grace_seconds
    scene.wait(lambda: not [p for p in scene.pods(name) if not is_over(p)], "it is gone")
