"""The operator is killed after every write, frozen and doubled; its API requests audited.

One cluster for all; every test starts its operators itself and ends with all revisions checked.
"""

import json
import os
import signal
import subprocess
from collections.abc import Generator, Iterable

import pytest

from gpujob_local.cluster.cluster import NodeOptions
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.processes.processes import Child
from gpujob_operator.act.crash import CRASH_EXIT_CODE
from tests.harness.audit import granted, read_audit, refused, used
from tests.harness.profiles import add_unused_profile
from tests.harness.scene import IMAGE, JOBS, OURS, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]
# More writes than any life below has.
WRITES_MAX = 30
# After a job's last write nothing is left to write; a crash comes at once or never.
QUIET_SECONDS = 1.0
# Long enough that a busy machine alone takes it from nobody.
CALM = "--lease-seconds=5"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpujob-system/leases"
QUEUES = "/apis/gpujob.dev/v1alpha1/gpuqueues"
PROFILES = f"{OURS}/namespaces/default/gpuprofiles"
GPU_SERVICES = f"{OURS}/namespaces/default/gpuservices"
FRONT = "/api/v1/namespaces/default/services/answers"


@pytest.fixture(scope="module")
def shared_scene() -> Generator[Scene]:
    nodes = (NodeOptions("node-1", cards=1), NodeOptions("node-2", cards=1))
    with running_scene(chaos_options(nodes, audit=True, operator=False)) as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Generator[Scene]:
    """The shared one without operators and jobs; afterwards no promise may have been broken."""
    yield shared_scene
    for name in [name for name in shared_scene.cluster.children if name.startswith("operator")]:
        shared_scene.cluster.kill_operator(name)
    shared_scene.clear()
    shared_scene.recorder.verify()


def start(scene: Scene, *arguments: str, name: str = "operator", identity: str = "same") -> Child:
    """With its predecessor's identity an operator need not wait for the Lease to run out."""
    return scene.cluster.spawn_operator(name, f"--identity={identity}", *arguments)


def lease_holder(scene: Scene) -> str:
    try:
        return scene.client.get(f"{LEASES}/gpujob-operator")["spec"].get("holderIdentity", "")
    except ApiError:
        return ""


def end_state(scene: Scene, name: str) -> tuple[object, ...]:
    """What must not depend on crashes. Without the numbers of attempts: one that had no pod when
    its operator ended begins again under the next number.
    """
    status = scene.status(name)
    conditions = sorted((c["type"], c["status"], c["reason"]) for c in status["conditions"])
    ranks = [pod.rpartition("-")[2] for pod in scene.pod_names(name)]
    return status["phase"], scene.counters(name), conditions, ranks


# Crashes


def crash_after_writes(scene: Scene, life: str, numbers: Iterable[int], *faults: str) -> list[int]:
    """Lives of one kind, the first without a crash; after which writes there was one."""
    crashes: list[int] = []
    wanted: tuple[object, ...] = ()
    attempts = 0
    for number in (0, *numbers):
        name = f"{life}-{number}"
        crash = (f"--crash-after-writes={number}",) if number else ()
        operator = start(scene, *crash)
        # Of a job that waited at a change of the leader the first number is passed over.
        wait_until_it_decides(scene, operator)
        scene.submit(name, *faults)
        crashed = live_through_crash(scene, name, operator)
        wanted = wanted or end_state(scene, name)
        attempts = attempts or scene.status(name)["attempt"]
        assert end_state(scene, name) == wanted, f"after a crash after write {number}"
        assert scene.status(name)["attempt"] in (attempts, attempts + crashed)
        scene.cluster.kill_operator()
        if crashed:
            crashes.append(number)
        elif number:
            break
    return crashes


def wait_until_it_decides(scene: Scene, operator: Child) -> None:
    """Called as soon as it is started: what its log has by then is from others before it."""
    offset = operator.log.stat().st_size
    decides = "listed everything and decides from now on"
    scene.wait(lambda: decides in said(operator, offset) or not operator.alive(), decides)


def live_through_crash(scene: Scene, name: str, operator: Child) -> bool:
    """The job's life to its end; True if the operator crashed in it and was started again."""
    scene.wait(lambda: not operator.alive() or is_settled(scene, name), f"{name} runs or a crash")
    crashed = not operator.alive()
    if crashed:
        start(scene)
        scene.wait(lambda: is_settled(scene, name), f"{name} runs after the crash")
    scene.finish(name)
    scene.wait(
        lambda: scene.phase(name) == "Succeeded" or not (crashed or operator.alive()),
        f"{name} ends or a crash",
    )
    if not crashed and ends_soon(operator):
        crashed = True
        start(scene)
        scene.wait_phase(name, "Succeeded")
    assert not crashed or operator.process.wait() == CRASH_EXIT_CODE
    return crashed


def is_settled(scene: Scene, name: str) -> bool:
    """Measured, so that all of a life's writes but the last are written."""
    held = scene.status(name).get("reservation") or {}
    return held.get("source") == "Measured" and scene.step(name) > 0


def ends_soon(child: Child) -> bool:
    try:
        child.process.wait(QUIET_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.promise("I1", "I3", "I4", "I5", "I9")
def test_a_crash_after_any_write_of_a_life_changes_nothing(scene: Scene) -> None:
    """I3, I4, I5, I9: placed, pod, running, measured, learned, succeeded."""
    crashes = crash_after_writes(scene, "plain", range(1, WRITES_MAX))
    assert crashes == [*range(1, len(crashes) + 1)]
    assert 6 <= len(crashes) < WRITES_MAX - 1


@pytest.mark.promise("I3", "I9")
def test_a_crash_after_any_write_of_a_retried_life_changes_nothing(scene: Scene) -> None:
    """An attempt that fails is counted once, and its successor is started once. The writes before
    its end and after the second start are those of a plain life.
    """
    numbers = range(3, 8)
    assert crash_after_writes(scene, "retried", numbers, "1=exit:7") == [*numbers]


# Two operators


@pytest.mark.promise("I2")
def test_the_second_operator_goes_on_when_the_first_is_killed(scene: Scene) -> None:
    start(scene, CALM, name="operator", identity="first")
    scene.wait(lambda: lease_holder(scene) == "first", "the first leads")
    second = start(scene, CALM, name="operator-next", identity="second")
    scene.submit("before")
    scene.wait_steps("before")
    # The second attempt is its first where the operator of another test was killed before.
    pods = scene.pod_names("before")
    assert len(pods) == 1
    assert "wrote" not in said(second)
    scene.cluster.kill_operator("operator")
    scene.submit("after")
    scene.wait_steps("after")
    assert lease_holder(scene) == "second"
    assert "wrote" in said(second)
    scene.finish_and_wait("before", "after")
    assert scene.pod_names("before") == pods
    assert scene.counters("before") == {}


@pytest.mark.promise("I3")
def test_a_frozen_leader_acts_no_more_once_it_wakes(scene: Scene) -> None:
    """Split brain: the process that lost the Lease asleep must find out before it writes."""
    first = start(scene, CALM, name="operator", identity="first")
    scene.wait(lambda: lease_holder(scene) == "first", "the first leads")
    start(scene, CALM, name="operator-awake", identity="second")
    scene.submit("before")
    scene.wait(lambda: is_settled(scene, "before"), "only its steps are written from now on")
    written = said(first).count("wrote")
    scene.wait(lambda: said(first).count("wrote") > written, "the next write is a second away")
    os.kill(first.pid, signal.SIGSTOP)
    seen = first.log.stat().st_size
    scene.submit("while-asleep")
    scene.wait_steps("while-asleep")
    os.kill(first.pid, signal.SIGCONT)
    scene.wait(lambda: "leadership changed" in said(first, seen), "the first knows")
    scene.finish_and_wait("before", "while-asleep")
    assert lease_holder(scene) == "second"
    assert "wrote" not in said(first, seen)
    # The first number may have been the sleeper's.
    assert scene.pod_names("while-asleep") == ["while-asleep-2-0"]


def said(child: Child, offset: int = 0) -> list[str]:
    """The messages in an operator's log, from a byte of it on; `wrote` for a cycle that did."""
    lines = child.log.read_bytes()[offset:].splitlines()
    entries = [json.loads(line) for line in lines if line.startswith(b"{")]
    wrote = ["wrote" for entry in entries if entry["message"] == "cycle" and entry.get("done")]
    return [entry["message"] for entry in entries] + wrote


# Deletion


@pytest.mark.promise("I7")
def test_a_job_deleted_while_no_operator_runs_leaves_nothing(scene: Scene) -> None:
    """I7: nothing of ours is needed for it, and nothing of ours is in the way."""
    start(scene)
    scene.submit("running")
    scene.wait_steps("running")
    scene.cluster.kill_operator()
    scene.submit("never-seen")
    for name in ("running", "never-seen"):
        scene.delete(name)
        assert scene.job(name) is None
    scene.wait(lambda: not scene.pods("running"), "its pod is gone without an operator")
    start(scene)
    scene.submit("next")
    scene.wait_steps("next")
    assert scene.pod_names("never-seen") == []


# Rights

# Asked only after a conflict or a lost answer, which a good run need not have: that they are asked
# for then is shown in tests/integration/operator/test_missing_rights.py.
AFTER_CONFLICTS = {
    *(("gpujob.dev", kind, "get") for kind in ("gpujobs", "gpuqueues", "gpuprofiles")),
    ("", "pods", "get"),
    ("", "services", "get"),
}


@pytest.mark.promise("I12")
def test_every_right_is_used_and_nothing_is_refused(scene: Scene) -> None:
    """I12, by the API server's audit log."""
    for name in leases(scene):
        scene.client.delete(f"{LEASES}/{name}")
    queue = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUQueue", "metadata": {"name": "team"}}
    scene.client.create(QUEUES, queue | {"spec": {}})
    add_unused_profile(scene.client, PROFILES)
    pod = ("--report-service=reports", "--pod-address=10.0.0.7", "--pod-uid=of-nobody")
    start(scene, *pod)
    scene.create_claim("audited")
    scene.submit("audited", queue="team", checkpoint={"volumeClaimName": "audited"})
    scene.wait(lambda: is_settled(scene, "audited"), "audited is measured")
    scene.client.merge(f"{JOBS}/audited", {"spec": {"suspend": True}})
    scene.wait(lambda: scene.condition("audited", "Scheduled")["reason"] == "Suspended", "stopped")
    scene.client.delete(f"{QUEUES}/team")
    scene.submit("gang", workers=2, ttlSecondsAfterFinished=0)
    scene.wait_phase("gang", "Running")
    scene.finish("gang")
    scene.wait(lambda: "gang" not in job_names(scene), "the finished gang is deleted")
    scene.wait(lambda: not has_unused_profile(scene), "the unused profile is deleted")
    play_service(scene)
    log = scene.cluster.control_plane.audit_log
    for account in ("operator", "agent"):
        requests = read_audit(log, f"gpujob-{account}")
        assert refused(requests) == []
        assert used(requests) <= granted(account), f"{account} asks for more than we say"
        never = granted(account) - used(requests) - AFTER_CONFLICTS
        assert never == set(), f"{account} has rights that it never used"


def play_service(scene: Scene) -> None:
    """A service whose replica never answers, from its beginning to its end, at last with a gate."""
    command = ["python", "worker.py", "--gate", str(scene.gate("answers"))]
    worker = {"name": "worker", "image": IMAGE, "command": command}
    spec = {
        "optimize": {"backend": "External"},
        "template": {"spec": {"containers": [worker]}},
    }
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUService"}
    scene.client.create(GPU_SERVICES, head | {"metadata": {"name": "answers"}, "spec": spec})

    def replicas() -> list[str]:
        return [name for name in job_names(scene) if name.startswith("answers-")]

    scene.wait(lambda: replicas() != [], "the service has a replica")
    path = f"{GPU_SERVICES}/answers"
    scene.wait(lambda: bool(scene.client.get(path).get("status")), "the service has a status")
    scene.client.merge(path, {"spec": {"replicas": {"minimum": 0}}})

    def selects_gate() -> bool:
        return "gpujob.dev/gate" in scene.client.get(FRONT)["spec"]["selector"]

    scene.wait(selects_gate, "its Service sends requests to the gate")
    scene.client.delete(path)
    scene.wait(lambda: replicas() == [], "its replica is gone")


def has_unused_profile(scene: Scene) -> bool:
    items = scene.client.get(PROFILES)["items"]
    return any(item["metadata"]["name"] == "unused" for item in items)


def job_names(scene: Scene) -> list[str]:
    return [item["metadata"]["name"] for item in scene.client.get(JOBS)["items"]]


def leases(scene: Scene) -> list[str]:
    return [item["metadata"]["name"] for item in scene.client.get(LEASES)["items"]]
