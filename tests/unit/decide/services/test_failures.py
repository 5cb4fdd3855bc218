"""Replicas that end by themselves, and writes that are refused."""

import itertools
from datetime import timedelta

import pytest

from gpujob_api.gpuservice import Replicas
from tests.harness.builders import make_template
from tests.harness.services import ServiceWorld, make_service


def world(replicas: int = 2) -> ServiceWorld:
    return ServiceWorld(make_service(replicas=Replicas(replicas)))


def test_a_failed_replica_is_replaced_after_a_pause_that_grows() -> None:
    scene = world(1)
    scene.start_seconds = lambda name: None
    ends: list[int] = []
    for second in range(400):
        scene.tick()
        fresh = [one for one in scene.replicas() if not one.job.finished]
        if fresh:
            scene.fail(fresh[0].job.metadata.name)
            ends.append(second)
    pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[0] >= 10
    assert pauses[3] >= 80
    assert len(scene.jobs) == 1, "the newest one is kept for its log"


def test_the_condition_has_the_last_line_of_the_script_and_the_command_for_its_log() -> None:
    scene = world(1).run(5)
    name = scene.ready()[0].job.metadata.name
    scene.fail(name)
    scene.run(1)
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("False", "ReplicasFailing")
    assert "ModuleNotFoundError: no module torch" in message
    assert f"kubectl gpujob logs {name} -n team" in message
    [note] = [note for step in scene.steps for note in step.events if note.reason == "ReplicaEnded"]
    assert "10 s" in note.message


@pytest.mark.parametrize(
    "message",
    [
        "OSError: [Errno 98] Address already in use",
        "error while attempting to bind on ('0.0.0.0', 8000): address already in use",
    ],
)
def test_an_address_in_use_names_the_address_of_the_replica(message: str) -> None:
    scene = world(2).run(5)
    scene.fail(scene.ready()[0].job.metadata.name, message)
    scene.run(1)
    found = scene.condition("Ready")[2]
    assert f"{message}; if replicas share a host" in found
    assert "GPUJOB_SERVING_HOST" in found


def test_a_replica_that_answers_ends_the_count_of_failures() -> None:
    scene = world(1).run(5)
    scene.fail(scene.ready()[0].job.metadata.name)
    scene.run(1)
    assert scene.status.failures == 1
    scene.run(30)
    assert len(scene.ready()) == 1
    assert scene.status.failures == 1, "it may fail at its first request"
    scene.run(300)
    assert scene.status.failures == 0


def test_pauses_grow_for_a_server_that_fails_at_its_first_request() -> None:
    """It answers its probe for two seconds each time."""
    scene, pauses = world(1), list[float]()
    while len(pauses) < 6:
        scene.tick()
        for one in scene.ready():
            assert one.ready_at is not None
            if scene.now - one.ready_at >= timedelta(seconds=2):
                scene.fail(one.job.metadata.name)
                scene.tick()
                assert scene.status.next_replica_at is not None
                pauses.append((scene.status.next_replica_at - scene.now).total_seconds())
    assert pauses == sorted(pauses)
    assert pauses[-1] > 200


def crashing_edit(scene: ServiceWorld, seconds: int) -> list[int]:
    """Edits a service whose replicas answer. Each new one fails at once. Returns when."""
    old = {one.job.metadata.name for one in scene.ready()}
    scene.start_seconds = lambda name: None
    scene.edit(template=make_template(command=("wrong",)))
    ends: list[int] = []
    for second in range(seconds):
        scene.tick()
        for one in scene.replicas():
            if one.job.metadata.name not in old and not one.job.finished:
                scene.fail(one.job.metadata.name)
                ends.append(second)
    return ends


def test_the_pause_grows_although_replicas_from_before_the_edit_answer() -> None:
    scene = world(2).run(10)
    ends = crashing_edit(scene, 200)
    pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert [round(pause, -1) for pause in pauses[:4]] == [10, 20, 40, 80]
    assert min(scene.answering[10:]) == 2


def test_a_rollout_that_fails_names_the_failed_replica_at_once_and_until_one_answers() -> None:
    scene = world(1).run(10)
    crashing_edit(scene, 3)
    reasons: set[str] = set()
    scene.start_seconds = lambda name: 60.0
    for _ in range(30):
        scene.tick()
        reasons.add(scene.status.summary.reason)
    assert scene.condition("Ready")[0] == "True"
    status, reason, message = scene.condition("Progressing")
    assert (status, reason) == ("True", "Updating")
    assert "ModuleNotFoundError" in message
    [text] = reasons
    assert "ended by itself: UserError: ModuleNotFoundError" in text


def test_a_service_that_starts_again_still_names_the_failure() -> None:
    scene = world(1).run(10)
    scene.fail(scene.ready()[0].job.metadata.name)
    scene.start_seconds = lambda name: 60.0
    scene.run(15)
    assert len(scene.replicas()) == 2
    assert scene.condition("Ready")[1] == "ReplicasFailing"
    assert "ModuleNotFoundError" in scene.condition("Ready")[2]


def test_an_edit_is_not_delayed_by_the_pause_of_the_revision_before() -> None:
    scene = world(1).run(10)
    crashing_edit(scene, 100)
    assert scene.status.failures >= 3
    scene.start_seconds = lambda name: 3.0
    scene.edit(template=make_template(command=("right",)))
    scene.run(10)
    assert scene.status.failures == 0
    assert len(scene.revisions()) == 2, "the correction, and the failed one with its log"
    assert len(scene.ready()) == 1
    assert scene.condition("Progressing")[1] == "Complete"


def test_an_older_replica_that_fails_after_a_newer_one_counts_too() -> None:
    scene = world(2).run(10)
    first, second = (one.job.metadata.name for one in scene.ready())
    scene.start_seconds = lambda name: None
    scene.fail(second)
    scene.run(1)
    scene.fail(first)
    scene.run(1)
    assert (scene.status.failures, scene.status.last_failed) == (2, first)
    scene.run(5)
    assert scene.status.failures == 2
    assert [one.job.metadata.name for one in scene.replicas()] == [first]


def test_a_replica_of_an_older_revision_that_fails_delays_nothing() -> None:
    scene = world(2).run(10)
    old = scene.ready()[0].job.metadata.name
    scene.start_seconds = lambda name: 60.0
    scene.edit(template=make_template(command=("slow",)))
    scene.run(2)
    scene.fail(old)
    scene.run(2)
    assert scene.status.failures == 0
    [note] = [note for step in scene.steps for note in step.events if note.reason == "ReplicaEnded"]
    assert note.message.startswith(f"{old}: ")
    assert "next replica" not in note.message


def test_a_server_that_ends_with_0_has_failed_its_service() -> None:
    scene = world(1).run(5)
    scene.finish(scene.ready()[0].job.metadata.name)
    scene.run(1)
    assert "exit code 0" in scene.condition("Ready")[2]
    scene.run(30)
    assert len(scene.ready()) == 1


def test_a_refused_replica_is_in_the_condition_with_the_api_servers_words() -> None:
    scene = world(1)
    scene.start_seconds = lambda name: None
    scene.problem = "GPUJob answers-0-0: 403 Forbidden: exceeded quota"
    scene.run(1)
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("False", "ReplicaRejected")
    assert "exceeded quota" in message
    assert scene.status.summary.reason.endswith("exceeded quota")


def test_an_unchanged_service_is_not_written_again() -> None:
    scene = world(2).run(10)
    scene.steps.clear()
    scene.run(30)
    assert [step.status for step in scene.steps if step.status is not None] == []
