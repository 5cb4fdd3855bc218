"""Pods as the API server sends them become what decisions need; nothing a pod says can break it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpujob_api.report import Report, WorkerPhase
from gpujob_operator.decide.model.snapshot import PodPhase
from gpujob_operator.read.pods import cached_pod, pod_view
from tests.harness.builders import make_job
from tests.harness.manifests import pod_manifest

JOB = make_job()


def test_identity_placement_and_times() -> None:
    state = {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
    view = pod_view(pod_manifest(JOB, 3, attempt=2, state=state))
    assert (view.name, view.job_uid, view.attempt, view.rank) == ("job-2-3", "uid-job", 2, 3)
    assert (view.node, view.gpus, view.phase) == ("n0", ("GPU-0",), PodPhase.RUNNING)
    assert view.started_at == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert view.finished_at is None
    assert not view.finished


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], ("10.0.0.1", "fd00::1")),
        ([{"ip": "10.0.0.1"}] * 9, ("10.0.0.1",) * 2),
        ([{}, {"ip": 7}, "10.0.0.1"], ()),
        ("10.0.0.1", ()),
    ],
)
def test_the_addresses_of_a_pod(addresses: Any, found: tuple[str, ...]) -> None:
    manifest = pod_manifest(JOB)
    assert pod_view(manifest).addresses == ()
    manifest["status"]["podIPs"] = addresses
    assert pod_view(manifest).addresses == found


def test_report_in_the_termination_message() -> None:
    report = Report(1, WorkerPhase.FINISHED, step=7)
    ended = {"exitCode": 0, "message": report.to_text(), "finishedAt": "2026-01-01T00:01:00Z"}
    view = pod_view(pod_manifest(JOB, phase="Succeeded", state={"terminated": ended}))
    assert (view.exit_code, view.termination, view.termination_text) == (0, report, "")
    assert view.finished


@pytest.mark.parametrize(
    "text",
    ["CUDA out of memory", "{", '{"attempt": "x", "phase": "training"}', "[1]", "{" * 5000],
)
def test_any_other_termination_message_stays_text(text: str) -> None:
    ended = {"exitCode": 1, "message": text, "reason": "Error"}
    view = pod_view(pod_manifest(JOB, phase="Failed", state={"terminated": ended}))
    assert view.termination is None
    assert view.termination_text == text[-2048:]
    assert (view.exit_code, view.reason) == (1, "Error")


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ({"reason": "Evicted", "message": "disk"}, "Evicted", "disk"),
        (
            {
                "containerStatuses": [
                    {
                        "name": "worker",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}},
                    }
                ]
            },
            "ImagePullBackOff",
            "no",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ]
            },
            "",
            "",
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "copy", "state": {"waiting": {"reason": "CreateContainerError"}}}
                ]
            },
            "CreateContainerError",
            "",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ]
            },
            "Unschedulable",
            "0/3 nodes",
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, "", ""),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, Any], reason: str, message: str) -> None:
    manifest = pod_manifest(JOB, phase="Pending")
    manifest["status"] |= status
    view = pod_view(manifest)
    assert (view.reason, view.message) == (reason, message)


@pytest.mark.parametrize("exit_code", [0, 143])
@pytest.mark.parametrize("true", [True, False])
def test_who_ends_a_pod_from_outside_stands_beside_how_it_ended(
    exit_code: int, *, true: bool
) -> None:
    """The disruption controller takes its word back where the pod was not deleted after all."""
    manifest = pod_manifest(JOB, phase="Failed" if exit_code else "Succeeded")
    ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
    condition = {"type": "DisruptionTarget", "status": "True" if true else "False"}
    condition |= {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    manifest["status"] |= {
        "conditions": [condition],
        "containerStatuses": [{"name": "worker", "state": {"terminated": ended}}],
    }
    view = pod_view(manifest)
    assert view.disruption == ("EvictionByEvictionAPI" if true else "")
    by = "EvictionByEvictionAPI" if true else ""
    assert view.reason == ("Error" if exit_code else by)


def test_edited_labels_do_not_make_a_worker_disappear() -> None:
    """I3: a second attempt must not start because somebody edited a label."""
    manifest = pod_manifest(JOB, 1, attempt=4)
    manifest["metadata"]["labels"] = {"gpujob.dev/attempt": "nonsense"}
    view = pod_view(manifest)
    assert (view.job_uid, view.attempt, view.rank) == ("uid-job", 4, 1)


OWNER = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "name": "job", "uid": "uid-job"}


def init_ended(reason: str, worker: dict[str, Any]) -> dict[str, Any]:
    """The second init container ended with 1."""
    ended = {"exitCode": 1, "reason": reason, "message": "no route to host"}
    done = {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    return {
        "phase": "Failed",
        "initContainerStatuses": [done, {"name": "get-data", "state": {"terminated": ended}}],
        "containerStatuses": [{"name": "worker", "state": worker}],
    }


@pytest.mark.parametrize(
    ("ended", "worker", "reason"),
    [
        ("Error", {"waiting": {"reason": "PodInitializing"}}, "Error"),
        ("OOMKilled", {"waiting": {"reason": "PodInitializing"}}, "OOMKilled"),
        # The node restarted.
        ("Unknown", {"waiting": {"reason": "PodInitializing"}}, "Unknown"),
        # A sidecar is ended after the worker.
        ("Unknown", {"terminated": {"exitCode": 1, "reason": "Error"}}, "Error"),
    ],
)
def test_an_init_container_that_fails_is_named(
    ended: str, worker: dict[str, Any], reason: str
) -> None:
    manifest = pod_manifest(JOB, phase="Failed")
    manifest["status"] = init_ended(ended, worker)
    view = pod_view(manifest)
    assert view.reason == reason
    if "waiting" in worker:
        assert (view.exit_code, view.termination_text) == (None, "no route to host")
        assert view.message == "init container get-data exited with code 1"


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        "x",
        [None, 1, "x", {}],
        [OWNER],
        [OWNER | {"controller": "true"}],
        [OWNER | {"controller": True, "kind": "GPUQueue"}],
        [OWNER | {"controller": True, "apiVersion": "other.dev/v1"}],
        [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "r", "controller": True}, OWNER],
    ],
)
def test_labels_and_references_that_do_not_control_name_no_owner(owners: Any) -> None:
    view = pod_view(pod_manifest(JOB, ownerReferences=owners))
    assert view.job_uid == ""


@pytest.mark.parametrize(
    "name",
    ["alone", "x-1", "-1-0", "x-01-0", "x-1-00", "x-100000-0", "x-1-1024", "x-1-٣", "x-1-0-"],
)
def test_who_has_no_workers_name_is_unmanaged(name: str) -> None:
    pod = cached_pod(pod_manifest(JOB, name=name))
    assert pod.view is None
    assert pod.requests.cpu_milli == 1000


def test_the_grace_that_a_pod_was_made_with() -> None:
    manifest = pod_manifest(JOB)
    assert pod_view(manifest).grace_seconds is None
    manifest["spec"]["terminationGracePeriodSeconds"] = 77
    assert pod_view(manifest).grace_seconds == 77


def test_a_worker_that_ended_beside_another_container() -> None:
    """The pod runs on: its worker has ended, and its GPUs are not proven free."""
    ended = {"exitCode": 0, "finishedAt": "2026-01-01T00:01:00Z"}
    manifest = pod_manifest(JOB, phase="Running", state={"terminated": ended})
    beside = {"name": "istio-proxy", "state": {"running": {}}}
    manifest["status"]["containerStatuses"].insert(0, beside)
    view = pod_view(manifest)
    assert (view.exit_code, view.ended, view.finished) == (0, True, False)


def test_unknown_phase_and_broken_times() -> None:
    manifest = pod_manifest(JOB, phase="Sideways")
    manifest["metadata"]["creationTimestamp"] = "yesterday"
    view = pod_view(manifest)
    assert view.phase is PodPhase.UNKNOWN
    assert view.created_at is None


def test_no_status_yet_is_pending() -> None:
    manifest = pod_manifest(JOB, node=None)
    del manifest["status"]
    view = pod_view(manifest)
    assert (view.phase, view.node) == (PodPhase.PENDING, None)
