"""Pods with native sidecars: init containers that run as long as the worker, such as a mount."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.report import FailureClass
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import after, make_gpu_node, make_snapshot, statuses
from tests.harness.manifests import pod_manifest
from tests.unit.decide.lifecycle.test_ends_of_pods import NOT_STARTED, STARTING, terminated

SIDECAR = {"name": "gcsfuse", "image": "fuse:1", "restartPolicy": "Always"}
FETCH = {"name": "fetch-data", "image": "fetch:1"}
RUNS = {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
FETCHED = terminated(0, "Completed")
SANDBOX = {"type": "PodReadyToStartContainers", "status": "True"}


def decided(
    inits: dict[str, dict[str, Any]],
    *,
    phase: str = "Pending",
    at: float = 700,
    worker: dict[str, Any] = NOT_STARTED,
    beside: dict[str, Any] | None = None,
    started: bool = True,
) -> GPUJob:
    """The job after a cycle in which its init containers have these states.

    `started` is whether the sidecar's startup probe has succeeded.
    """
    manifest = pod_manifest(STARTING, phase=phase, state=worker)
    manifest["spec"]["initContainers"] = [SIDECAR, FETCH]
    manifest["status"]["conditions"] = [SANDBOX]
    manifest["status"]["initContainerStatuses"] = [
        {"name": name, "state": state, "started": started} for name, state in inits.items()
    ]
    if beside is not None:
        manifest["status"]["containerStatuses"] += [{"name": "logs", "state": beside}]
    node = make_gpu_node("n0", at=at)
    items = plan(make_snapshot(STARTING, pods=[pod_view(manifest)], gpu_nodes=[node]), after(at))
    return replace(STARTING, status=statuses(items.items).get("job", STARTING.status))


@pytest.mark.parametrize("code", [143, 137])
def test_the_init_container_that_failed_is_named_and_not_the_sidecar(code: int) -> None:
    """The kubelet ends native sidecars once an init container has failed."""
    missing = terminated(1, message="ModuleNotFoundError: No module named 'boto3'")
    job = decided({"gcsfuse": terminated(code), "fetch-data": missing}, phase="Failed", at=10)
    assert job.status.failure is not None
    assert "init container fetch-data exited with code 1" in job.status.failure.message
    assert job.status.failure.failure_class is FailureClass.USER_ERROR
    assert job.status.phase is JobPhase.FAILED


@pytest.mark.parametrize(
    "inits", [{"fetch-data": FETCHED}, {"gcsfuse": RUNS, "fetch-data": FETCHED}]
)
def test_the_worker_has_the_time_to_pull_its_image(inits: dict[str, dict[str, Any]]) -> None:
    assert decided(inits).status.phase is JobPhase.STARTING
    late = decided(inits, at=3700)
    assert late.status.stop is not None
    assert late.status.stop.reason == "CannotStart"
    assert "images of pod job-1-0 were not pulled" in late.status.stop.message


def test_a_sidecar_that_does_not_start_has_no_more_time_than_any_container() -> None:
    job = decided({"gcsfuse": RUNS, "fetch-data": NOT_STARTED}, started=False)
    assert job.status.stop is not None
    assert job.status.stop.reason == "StartTimeout"


def test_an_init_container_that_does_not_end_has_no_more_time_beside_a_sidecar() -> None:
    job = decided({"gcsfuse": RUNS, "fetch-data": RUNS})
    assert job.status.stop is not None
    assert job.status.stop.reason == "StartTimeout"


@pytest.mark.parametrize(
    ("reason", "phase"),
    [("ContainerCreating", JobPhase.STARTING), ("ErrImagePull", JobPhase.STOPPING)],
)
def test_a_container_beside_the_worker_has_the_time_to_pull_its_image(
    reason: str, phase: JobPhase
) -> None:
    """The worker runs. The pod is Pending as long as one of its containers has not started."""
    inits = {"gcsfuse": RUNS, "fetch-data": FETCHED}
    job = decided(inits, worker=RUNS, beside={"waiting": {"reason": reason}})
    assert job.status.phase is phase
