"""Workers that fail, hang, are killed, will not stop or cannot start; one cluster for all."""

import random
import re
import signal
from collections.abc import Generator

import pytest

from gpujob_api.manifest import gpujob_from_manifest
from gpujob_local.cluster.cluster import NodeOptions
from gpujob_operator.decide.model.next_steps import next_step
from tests.harness.scene import JOBS, PODS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    with running_scene(chaos_options((NodeOptions("node-1", cards=6),))) as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without jobs; afterwards no promise may have been broken."""
    yield shared_scene
    shared_scene.clear()
    shared_scene.recorder.verify()


def wait_attempt(scene: Scene, name: str, number: int) -> None:
    scene.wait(lambda: scene.status(name).get("attempt") == number, f"{name}: attempt {number}")


@pytest.mark.promise("I4")
@pytest.mark.parametrize("when", ["exit", "late-exit"])
def test_exit_codes_decide_what_becomes_of_a_job(scene: Scene, when: str) -> None:
    """Before the first step or after it: 143 and 144 are interruptions, the others errors."""
    wanted = {
        1: {"errors": 1},
        137: {"errors": 1},
        143: {"interruptions": 1},
        144: {"interruptions": 1},
    }
    for code in wanted:
        scene.submit(f"code-{code}", f"1={when}:{code}")
    scene.submit("code-0", f"1={when}:0")
    scene.wait_phase("code-0", "Succeeded")
    assert scene.pod_names("code-0") == ["code-0-1-0"]
    assert scene.counters("code-0") == {}
    for code in wanted:
        # The exit is its own, whenever it comes; only then is the second attempt let go.
        wait_attempt(scene, f"code-{code}", 2)
    scene.finish_and_wait(*(f"code-{code}" for code in wanted))
    for code, counters in wanted.items():
        assert scene.counters(f"code-{code}") == counters, code
        assert scene.status(f"code-{code}")["attempt"] == 2


def test_the_users_error_before_the_first_step_is_not_repeated(scene: Scene) -> None:
    scene.submit("early", "*=user-error")
    scene.submit("late", "*=late-error", retry={"limit": 1})
    scene.wait_phase("early", "Failed")
    assert scene.pod_names("early") == ["early-1-0"]
    failed = scene.condition("early", "Succeeded")
    assert (failed["status"], failed["reason"]) == ("False", "UserError")
    assert "NameError: name 'modle' is not defined" in failed["message"]
    scene.wait_phase("late", "Failed")
    assert scene.pod_names("late") == ["late-1-0", "late-2-0"]
    assert scene.status("late")["failure"]["failureClass"] == "UserError"
    assert "failed 2 times, retry.limit is 1" in scene.condition("late", "Succeeded")["message"]


# It saves when it is asked to end, and ends with 0; the second attempt has nothing left to do.
KEEPER = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
while os.environ["GPUJOB_ATTEMPT"] == "1": time.sleep(0.05)
"""


@pytest.mark.parametrize("by", ["person", "eviction"])
def test_a_script_that_ends_with_0_when_it_is_asked_to_is_not_done(scene: Scene, by: str) -> None:
    handles = scene.gate(f"keeper-{by}")
    scene.submit_command("keeper", ["python", "-c", KEEPER, str(handles)])
    scene.wait(handles.exists, "it handles SIGTERM")
    scene.wait_phase("keeper", "Running")
    (name,) = scene.pod_names("keeper")
    if by == "person":
        scene.client.delete(f"{PODS}/{name}")
    else:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        scene.client.create(f"{PODS}/{name}/eviction", eviction)
    scene.wait_phase("keeper", "Succeeded")
    assert scene.status("keeper")["attempt"] == 2
    assert scene.counters("keeper") == {"interruptions": 1}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python", "absent.py"], "can't open file"),
        (["sh", "-c", "exec trian"], "trian"),
        (["python", "-c", "import absent_module"], "ModuleNotFoundError: No module named"),
    ],
    ids=["script", "command", "module"],
)
def test_what_cannot_begin_is_tried_once(scene: Scene, command: list[str], words: str) -> None:
    """No worker is there to report it: the exit code and the log tell."""
    scene.submit_command("mistaken", command)
    scene.wait_phase("mistaken", "Failed")
    assert scene.pod_names("mistaken") == ["mistaken-1-0"]
    assert scene.status("mistaken")["failure"]["failureClass"] == "UserError"
    assert words in scene.condition("mistaken", "Failed")["message"]


def test_torchs_out_of_memory_is_recognised_and_repeated(scene: Scene) -> None:
    """A real allocation that torch refuses, through the worker's launcher."""
    command = ["gpujob-run", "--", "python", "out_of_memory.py"]
    scene.submit_command("hungry", command)
    scene.wait_phase("hungry", "Succeeded")
    assert scene.counters("hungry") == {"outOfMemory": 1}
    assert scene.pod_names("hungry") == ["hungry-1-0", "hungry-2-0"]


def test_more_memory_than_a_cpu_card_has_is_the_jobs_own_failure(scene: Scene) -> None:
    """As on a GPU: tried again, then failed with the figures and the next step."""
    command = ["gpujob-run", "--", "python", "beyond_the_card.py"]
    scene.submit_command("greedy", command, retry={"limit": 1})
    scene.wait_phase("greedy", "Failed")
    assert scene.counters("greedy") == {"outOfMemory": 2}
    failed = scene.condition("greedy", "Failed")
    assert failed["reason"] == "OutOfMemory"
    assert re.search(
        r"CPU card out of memory: the process took 2\.\d+ GiB of 1\.94 GiB \(needs \d+ bytes\)"
        r".*failed 2 times, retry\.limit is 1",
        failed["message"],
    ), failed["message"]
    job = gpujob_from_manifest(scene.job("greedy") or {})
    assert next_step(job) == "run it again with a smaller batch, or on GPUs with more memory"


@pytest.mark.promise("I6")
def test_a_worker_killed_at_any_step_goes_on_behind_its_checkpoint(scene: Scene) -> None:
    scene.submit("victim")
    scene.wait_steps("victim", above=random.randrange(40))
    scene.signal_worker("victim", signal.SIGKILL)
    wait_attempt(scene, "victim", 2)
    scene.finish_and_wait("victim")
    assert scene.counters("victim") == {"errors": 1}
    (first,) = [pod for pod in scene.pods("victim") if pod["metadata"]["name"] == "victim-1-0"]
    assert first["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_a_frozen_worker_is_found_hung_and_repeated_once(scene: Scene) -> None:
    """SIGTERM does nothing to a stopped process; SIGKILL after the grace does."""
    scene.submit("frozen", retry={"hangTimeoutSeconds": 5})
    scene.wait_steps("frozen")
    scene.signal_worker("frozen", signal.SIGSTOP)
    scene.wait_phase("frozen", "Stopping")
    stop = scene.status("frozen").get("stop") or {}
    assert stop.get("reason", "Hung") == "Hung"
    wait_attempt(scene, "frozen", 2)
    scene.finish_and_wait("frozen")
    assert scene.counters("frozen") == {"hung": 1}
    assert scene.status("frozen")["attempt"] == 2


@pytest.mark.promise("I13")
def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(scene: Scene) -> None:
    scene.submit("stubborn", "1=ignore-term")
    scene.wait_steps("stubborn")
    scene.client.merge(f"{JOBS}/stubborn", {"spec": {"suspend": True}})
    scene.wait(
        lambda: scene.condition("stubborn", "Scheduled")["reason"] == "Suspended", "suspended"
    )
    assert scene.phase("stubborn") == "Pending"
    assert not any(scene.worker_pids(pod) for pod in scene.pods("stubborn"))
    scene.client.merge(f"{JOBS}/stubborn", {"spec": {"suspend": False}})
    scene.finish_and_wait("stubborn")
    assert scene.counters("stubborn") == {"interruptions": 1}


def test_a_command_that_does_not_exist_is_the_jobs_error_and_is_not_repeated(
    scene: Scene,
) -> None:
    scene.submit_command("typo", ["pyhton", "train.py"], retry={"limit": 3})
    scene.wait_phase("typo", "Failed")
    assert scene.pod_names("typo") == ["typo-1-0"]
    failed = scene.condition("typo", "Succeeded")
    assert 'exec: "pyhton": executable file not found' in failed["message"]


def test_an_image_that_does_not_exist_is_waited_for_and_said(scene: Scene) -> None:
    """One attempt that says why it does not start; others are not affected."""
    scene.submit_command("no-image", ["python"], image="registry.example/typo:1")
    scene.wait(
        lambda: scene.condition("no-image", "Running")["reason"] == "ErrImagePull",
        "the condition says why",
    )
    assert "registry.example/typo:1" in scene.condition("no-image", "Running")["message"]
    revision = scene.recorder.fold().job_revisions
    scene.submit("beside")
    scene.finish_and_wait("beside")
    uid = (scene.job("no-image") or {})["metadata"]["uid"]
    assert scene.recorder.fold().job_revisions[uid] <= revision[uid] + 1
    assert scene.pod_names("no-image") == ["no-image-1-0"]


def test_a_pod_deleted_by_hand_is_an_interruption(scene: Scene) -> None:
    scene.submit("evicted")
    scene.wait_steps("evicted")
    scene.client.delete(f"{PODS}/evicted-1-0")
    wait_attempt(scene, "evicted", 2)
    scene.finish_and_wait("evicted")
    assert scene.counters("evicted") == {"interruptions": 1}
    assert scene.pod_names("evicted") == ["evicted-2-0"]
