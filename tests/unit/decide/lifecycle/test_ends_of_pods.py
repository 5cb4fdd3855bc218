"""Ends of attempts, judged by pods as a kubelet reports them."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, JobPhase
from gpujob_api.report import FailureClass
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_report,
    make_snapshot,
    placed,
    running,
    statuses,
)
from tests.harness.manifests import pod_manifest

RUNNING, STARTING = running(make_job()), placed(make_job())
NOT_STARTED = {"waiting": {"reason": "PodInitializing"}}


def terminated(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    moments = {"startedAt": "2026-01-01T00:00:05Z", "finishedAt": "2026-01-01T00:00:09Z"}
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **moments}}


def ended(
    job: GPUJob,
    state: dict[str, Any] | None,
    phase: str = "Failed",
    at: float = 10.0,
    **status: Any,
) -> GPUJob:
    manifest = pod_manifest(job, phase=phase, state=state)
    manifest["status"] |= status
    node = make_gpu_node("n0", at=at)
    found = plan(make_snapshot(job, pods=[pod_view(manifest)], gpu_nodes=[node]), after(at))
    return replace(job, status=statuses(found.items)[job.metadata.name])


def init(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": name, "state": state}]}


@pytest.mark.parametrize("reason", ["TopologyAffinityError", "NodePorts", "Evicted", "AnyOther"])
def test_a_pod_that_a_kubelet_does_not_admit_uses_no_retry(reason: str) -> None:
    """The kubelet's admission has many reasons. The reason of the whole pod is one of them."""
    job = ended(STARTING, None, reason=reason, message="Pod was rejected: no NUMA node")
    assert job.status.phase is JobPhase.PENDING
    assert job.status.counters == Counters()
    assert [one.node for one in job.status.start_refusals] == ["n0"]
    assert "Pod was rejected: no NUMA node" in job.status.start_refusals[0].message


def test_a_kubelet_that_restarts_and_refuses_a_running_pod_interrupts_it() -> None:
    job = ended(RUNNING, terminated(137), reason="TopologyAffinityError")
    assert job.status.phase is JobPhase.PENDING
    assert job.status.counters == Counters(interruptions=1, fruitless=1)


@pytest.mark.parametrize(
    ("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")], ids=["containerd", ""]
)
def test_a_container_that_was_dead_after_a_reboot_lost_its_node(code: int, reason: str) -> None:
    job = ended(RUNNING, terminated(code, reason))
    assert job.status.counters == Counters(node_lost=1, fruitless=1)


@pytest.mark.parametrize(("reason", "is_done"), [("Completed", True), ("Terminated", False)])
def test_a_pod_that_succeeded_may_have_any_reason(reason: str, is_done: bool) -> None:
    """Virtual kubelets set one. Those of an end from outside are known."""
    job = ended(RUNNING, terminated(0, "Completed"), "Succeeded", reason=reason)
    assert (job.status.phase is JobPhase.SUCCEEDED) is is_done


def test_own_limits_stay_failures() -> None:
    job = ended(RUNNING, terminated(143), reason="DeadlineExceeded")
    assert job.status.counters == Counters(errors=1)


SIDECAR = init("proxy", {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}})


@pytest.mark.parametrize(
    ("state", "counters", "words"),
    [
        (terminated(137, "OOMKilled"), Counters(errors=1), "killed for host memory"),
        (terminated(255, "Unknown"), Counters(node_lost=1, fruitless=1), "node n0 was lost"),
    ],
)
def test_a_sidecar_that_waits_does_not_hide_why_the_worker_ended(
    state: dict[str, Any], counters: Counters, words: str
) -> None:
    job = ended(RUNNING, state, "Running", **SIDECAR)
    assert job.status.counters == counters
    assert words in " ".join(one.message for one in job.status.conditions)


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (terminated(1, message="wget: bad address"), FailureClass.UNKNOWN, "wget: bad address"),
        (terminated(137, "OOMKilled"), FailureClass.HOST_OUT_OF_MEMORY, "its memory limit"),
        (
            terminated(1, message="ModuleNotFoundError: No module named 'boto3'"),
            FailureClass.USER_ERROR,
            "No module named 'boto3'",
        ),
    ],
)
def test_an_init_container_that_fails_is_named(
    state: dict[str, Any], kind: FailureClass, words: str
) -> None:
    job = ended(STARTING, NOT_STARTED, **init("fetch-data", state))
    assert job.status.failure is not None
    assert job.status.failure.failure_class is kind
    assert "worker 0 was not started: init container fetch-data" in job.status.failure.message
    assert words in job.status.failure.message


def test_an_init_container_that_a_drain_ends_is_no_failure() -> None:
    manifest = pod_manifest(STARTING, phase="Failed", state=NOT_STARTED)
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:40Z"
    manifest["status"] |= init("fetch-data", terminated(143))
    pods, node = [pod_view(manifest)], make_gpu_node("n0", at=10)
    found = plan(make_snapshot(STARTING, pods=pods, gpu_nodes=[node]), after(10))
    assert statuses(found.items)["job"].counters == Counters(interruptions=1, fruitless=1)


@pytest.mark.parametrize(
    ("code", "words"),
    [(137, "code 137 (SIGKILL)"), (139, "code 139 (SIGSEGV)"), (135, "/dev/shm"), (3, "code 3;")],
)
def test_a_signal_is_named(code: int, words: str) -> None:
    job = ended(RUNNING, terminated(code))
    assert job.status.failure is not None
    assert words in f"{job.status.failure.message};"


@pytest.mark.parametrize(
    ("message", "is_memory"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", True),
        ("CalledProcessError: Command 'train' died with <Signals.SIGKILL: 9>.", True),
        ("ValueError: label 1001 is out of range", False),
    ],
)
def test_a_child_that_is_killed_for_host_memory_is_a_lack_of_it(
    message: str, *, is_memory: bool
) -> None:
    """A container keeps the reason OOMKilled if any of its processes was ever killed."""
    report = make_report(step=7, failure=FailureClass.USER_ERROR, message=message)
    job = ended(RUNNING, terminated(1, "OOMKilled", report.to_text()))
    assert job.status.failure is not None
    assert (job.status.failure.failure_class is FailureClass.HOST_OUT_OF_MEMORY) is is_memory
    assert message in job.status.failure.message


@pytest.mark.parametrize(
    "worker", [NOT_STARTED, {"running": {"startedAt": "2026-01-01T00:00:05Z"}}]
)
def test_another_container_that_cannot_start_refuses_the_attempt(worker: dict[str, Any]) -> None:
    """The pod stays Pending even if its worker runs. The worker would be stopped much later."""
    other = {"waiting": {"reason": "ErrImagePull", "message": "no such image: shipper:1"}}
    both = [{"name": "worker", "state": worker}, {"name": "shipper", "state": other}]
    job = ended(STARTING, None, "Pending", at=40, containerStatuses=both)
    assert job.status.stop is not None
    assert job.status.stop.reason == "CannotStart"
    assert "no such image: shipper:1" in job.status.stop.message


def test_init_containers_that_take_too_long_are_named() -> None:
    running_since = {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
    job = ended(STARTING, NOT_STARTED, "Pending", at=700, **init("fetch-data", running_since))
    assert job.status.stop is not None
    assert job.status.stop.reason == "StartTimeout"
    assert "the init containers of pod job-1-0 have not ended" in job.status.stop.message
