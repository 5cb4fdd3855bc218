"""Memory on GPUs beyond reservations: of unmanaged processes, and of jobs that use too much.

One node with two GPUs for all; every test ends with all revisions checked.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from gpujob_api.gpujob import StopReason
from gpujob_api.quantities import MIB
from gpujob_local.cluster.cluster import NodeOptions
from tests.harness.scene import GPU_NODES, OURS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]
NODE = "node-1"
# Of 2 GiB with 64 MiB for the driver: less than 400 MiB are left, or nothing.
MUCH_MIB, ALL_MIB = 1600, 1984
# Beside each other before it is known how busy they are.
CLOSE = {"mode": "Shared", "maxSlowdownPercent": 100}
SAID = re.compile(r"reserved by 1 job .* 1\.9\d GiB used by unmanaged processes .* driver > 2 GiB")
QUEUES = f"{OURS}/gpuqueues"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    with running_scene(chaos_options((NodeOptions(NODE, cards=2),))) as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without jobs; afterwards no promise may have been broken."""
    yield shared_scene
    shared_scene.clear()
    shared_scene.recorder.verify()


@contextmanager
def unmanaged_process(scene: Scene, gpu: str, amount_mebibytes: int) -> Generator[None]:
    """Takes memory on a GPU; begins when the agent has published it, ends when it is gone."""
    name = scene.cluster.start_unmanaged_process(gpu, amount_mebibytes * MIB)
    amount = amount_mebibytes * MIB
    scene.wait(
        lambda: used_by_unmanaged_processes(scene, gpu) >= amount, "the unmanaged process is seen"
    )
    try:
        yield
    finally:
        scene.cluster.stop_unmanaged_process(name)
        scene.wait(
            lambda: used_by_unmanaged_processes(scene, gpu) == 0, "the unmanaged process is gone"
        )


def used_by_unmanaged_processes(scene: Scene, uuid: str) -> int:
    status = scene.client.get(f"{GPU_NODES}/{NODE}")["status"]
    (gpu,) = [gpu for gpu in status["gpus"] if gpu["uuid"] == uuid]
    processes = gpu.get("processes", ())
    return sum(one["memoryBytes"] for one in processes if not one.get("podUid"))


def wants(memory: str) -> Json:
    return {"gpu": {"memory": memory}, "sharing": {"mode": "Shared"}}


def wait_measured(scene: Scene, name: str) -> None:
    def is_measured() -> bool:
        return (scene.status(name).get("reservation") or {}).get("source") == "Measured"

    scene.wait(is_measured, f"{name} holds what was measured")


@pytest.mark.promise("I1")
def test_nothing_is_placed_where_an_unmanaged_process_left_too_little(scene: Scene) -> None:
    """I1: it waits with the numbers, a smaller one fits, and it starts when the process ends."""
    gpus = scene.cluster.cards(NODE)
    with unmanaged_process(scene, gpus[0], MUCH_MIB), unmanaged_process(scene, gpus[1], MUCH_MIB):
        scene.submit("large", **wants("1Gi"))
        scene.wait_phase("large", "Pending")
        waiting = scene.condition("large", "Scheduled")
        assert (waiting["status"], waiting["reason"]) == ("False", "InsufficientCapacity")
        assert "1 GiB" in waiting["message"]
        assert "2 GPUs" in waiting["message"]
        scene.submit("small", **wants("256Mi"))
        scene.finish_and_wait("small")
        assert scene.phase("large") == "Pending"
        assert scene.pod_names("large") == []
    scene.finish_and_wait("large")
    assert scene.status("large")["attempt"] == 1


@pytest.mark.promise("I1")
def test_an_unmanaged_process_on_a_jobs_gpu_is_said_and_moves_nobody(scene: Scene) -> None:
    scene.submit("tenant")
    wait_measured(scene, "tenant")
    _node, gpu = scene.place("tenant")
    with unmanaged_process(scene, gpu, ALL_MIB):
        scene.wait(lambda: SAID.search(pressure(scene)["message"]) is not None, "it is said")
        assert pressure(scene)["status"] == "True"
        assert scene.place("tenant") == (NODE, gpu)
        scene.submit("next")
        scene.finish_and_wait("next")
    scene.wait(lambda: pressure(scene)["reason"] == "Fits", "it fits again")
    scene.finish_and_wait("tenant")
    assert scene.counters("tenant") == {}


def pressure(scene: Scene) -> Json:
    return scene.condition("tenant", "GPUPressure")


@pytest.mark.promise("I1")
def test_a_leak_is_charged_to_who_leaks(scene: Scene) -> None:
    """I1: of two tenants of one GPU the one that uses more than it holds has to go."""
    with unmanaged_process(scene, scene.cluster.cards(NODE)[1], ALL_MIB):
        for name in ("modest", "leaks"):
            scene.submit(name, gpu={"memory": "256Mi"}, sharing=CLOSE)
        for name in ("modest", "leaks"):
            scene.wait_steps(name)
        assert scene.place("modest") == scene.place("leaks") != ("", "")
        scene.take_memory("leaks", 1950)
        scene.wait(lambda: scene.counters("leaks") != {}, "it has left the GPU")
        scene.finish_and_wait("modest", "leaks")
    assert scene.pod_names("modest") == ["modest-1-0"]
    assert scene.counters("modest") == {}
    stops = stops_of(scene, "leaks")
    assert {stop.reason for stop in stops} == {"MemoryCapExceeded"}
    text = re.compile(r"uses 1\.\d+ GiB; .* gpu\.memory \(256 MiB\) is a cap")
    assert [stop.message for stop in stops if not text.search(stop.message)] == []


def stops_of(scene: Scene, name: str) -> list[StopReason]:
    """Why its attempts were ended, over all revisions."""
    return scene.recorder.fold().stops[scene.uid(name)]


@pytest.mark.promise("I1")
def test_a_leak_that_fits_is_reserved_and_keeps_others_away(scene: Scene) -> None:
    with unmanaged_process(scene, scene.cluster.cards(NODE)[1], ALL_MIB):
        scene.submit("grows")
        wait_measured(scene, "grows")
        scene.take_memory("grows", 1200)
        scene.wait(
            lambda: scene.status("grows")["reservation"]["memoryBytes"] > 1200 * MIB,
            "what it uses is reserved",
        )
        scene.submit("large", **wants("1Gi"))
        scene.wait_phase("large", "Pending")
        assert scene.condition("large", "Scheduled")["reason"] == "InsufficientCapacity"
        assert scene.pod_names("large") == []
        scene.finish_and_wait("grows")
        scene.finish_and_wait("large")


def test_a_queue_says_what_it_holds(scene: Scene) -> None:
    kind = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUQueue", "metadata": {"name": "team"}}
    scene.client.create(QUEUES, kind | {"spec": {"nominal": {"gpus": 1}}})
    scene.submit("runs", queue="team")
    scene.wait_steps("runs")
    scene.submit("waits", queue="team")
    scene.wait(lambda: queue_counts(scene) == (1, 1, 1), "one runs on one GPU, one waits")
    message = scene.condition("waits", "Scheduled")["message"]
    assert "queue team uses 1 of 1 GPUs, needs 1 more" in message
    scene.finish_and_wait("runs", "waits")
    scene.wait(lambda: queue_counts(scene) == (0, 0, 0), "it holds nothing any more")
    scene.client.delete(f"{QUEUES}/team")


def queue_counts(scene: Scene) -> tuple[int, ...]:
    status = scene.client.get(f"{QUEUES}/team").get("status", {})
    return tuple(status.get(key, 0) for key in ("runningJobs", "reservedGpus", "pendingJobs"))


def test_what_was_measured_is_kept_for_the_next_of_its_kind(scene: Scene) -> None:
    """The profile is written once it is known, and the same workload starts with its figures."""
    command = ["python", "worker.py", "--gate", str(scene.gate("learned"))]
    scene.submit_command("learned", command)
    wait_measured(scene, "learned")
    held = scene.status("learned")["reservation"]["memoryBytes"]
    scene.wait(lambda: entries(scene, command) != [], "its profile has an entry")
    (entry,) = entries(scene, command)
    assert entry["gpuModel"] == "CPU card"
    assert 0 < entry["memoryBytes"] <= held
    scene.finish_and_wait("learned")
    scene.submit_command("again", command)
    scene.wait_phase("again", "Succeeded")
    history = scene.recorder.fold()
    first = history.first_reservations[scene.uid("again")]
    assert (first.source.value, first.memory_bytes < 1024 * MIB) == ("Profile", True)


def entries(scene: Scene, command: list[str]) -> list[Json]:
    profiles = scene.client.get(f"{OURS}/gpuprofiles")["items"]
    (found,) = [one for one in profiles if one["spec"]["command"] == command] or [{}]
    return found.get("status", {}).get("entries", [])
