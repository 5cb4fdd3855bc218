"""What of a GPUJob may change, and what its status may never take back."""

import json
from typing import Any

import pytest

from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.jobs import job_manifest, set_field

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
WORKER = "template.spec.containers.0"
RICH: dict[str, Any] = {
    "gpu": {"memory": "20Gi", "models": ["H100"]},
    "workload": "resnet",
    "optimize.batchSize.total": 256,
    "checkpoint.volumeClaimName": "ckpt",
    f"{WORKER}.args": ["--epochs", "3"],
    f"{WORKER}.env": [{"name": "SEED", "value": "1"}],
    f"{WORKER}.resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}},
    "template.spec.volumes": [{"name": "data", "emptyDir": {}}],
    "template.spec.nodeSelector": {"zone": "a"},
    "template.metadata": {"labels": {"team": "vision"}},
}
IMMUTABLE: list[tuple[str, Any, str]] = [
    (f"{WORKER}.image", "other", "spec.template"),
    (f"{WORKER}.command", ["python", "other.py"], "spec.template"),
    (f"{WORKER}.args", ["--epochs", "4"], "spec.template"),
    (f"{WORKER}.env.0.value", "2", "spec.template"),
    (f"{WORKER}.env.0", {"name": "SEED", "valueFrom": {}}, "spec.template"),
    (f"{WORKER}.resources.limits", {"cpu": 0.6, "memory": "1Gi"}, "spec.template"),
    (f"{WORKER}.resources.limits", {"cpu": 0.5, "ephemeral-storage": "1Gi"}, "spec.template"),
    (f"{WORKER}.resources", {"requests": {"cpu": 0.5, "memory": "1Gi"}}, "spec.template"),
    (f"{WORKER}.workingDir", "/tmp", "spec.template"),
    ("template.spec.volumes", [{"name": "data", "hostPath": {}}], "spec.template"),
    ("template.spec.nodeSelector", {"region": "a"}, "spec.template"),
    ("template.spec.affinity", {"nodeAffinity": {}}, "spec.template"),
    ("template.metadata.labels", {"crew": "vision"}, "spec.template"),
    ("workload", "other", "spec.workload"),
    ("workers", 2, "spec.workers"),
    ("gpusPerWorker", 2, "spec.gpusPerWorker"),
    ("gpu.models", ["A100"], "spec.gpu.models"),
    ("optimize.batchSize.total", 512, "spec.optimize.batchSize.total"),
    ("checkpoint.volumeClaimName", "other", "spec.checkpoint.volumeClaimName"),
]
MUTABLE: list[tuple[str, Any]] = [
    ("queue", "research"),
    ("priority", 7),
    ("suspend", True),
    ("spot.policy", "Never"),
    ("gpu.memory", "30Gi"),
    ("gpu.memory", 2**34),
    ("sharing.mode", "Exclusive"),
    ("sharing.maxSlowdownPercent", 25),
    ("optimize.mode", "Recommend"),
    ("checkpoint.interval", "5m"),
    ("checkpoint.keep", 5),
    ("retry.limit", 9),
]


@pytest.fixture
def path(control_plane: RunningControlPlane, namespace: str) -> str:
    """A stored job with a bit of everything."""
    collection = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"
    control_plane.client().create(collection, job_manifest(**RICH))
    return f"{collection}/job"


def _refusal(control_plane: RunningControlPlane, method: str, path: str, body: Json) -> str:
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as caught:
        control_plane.client().request(method, path, body, content)
    assert caught.value.code == 422
    return str(caught.value)


def _edited(control_plane: RunningControlPlane, path: str, field: str, value: Any) -> Json:
    stored = control_plane.client().get(path)
    set_field(stored["spec"], field, value)
    return stored


@pytest.mark.parametrize(("field", "value", "named"), IMMUTABLE)
def test_what_a_running_job_rests_on_cannot_be_edited(
    control_plane: RunningControlPlane, path: str, field: str, value: Any, named: str
) -> None:
    edited = _edited(control_plane, path, field, value)
    refusal = _refusal(control_plane, "PUT", f"{path}?dryRun=All", edited)
    assert f"{named}: Invalid value" in refusal
    assert "create a new GPUJob instead" in refusal


def test_a_renamed_field_of_the_template_is_seen(
    control_plane: RunningControlPlane, path: str
) -> None:
    """CEL compares objects of unknown fields by their number only; ours are all known."""
    stored = control_plane.client().get(path)
    (worker,) = stored["spec"]["template"]["spec"]["containers"]
    worker["workingDir"] = worker.pop("image")
    refusal = _refusal(control_plane, "PUT", f"{path}?dryRun=All", stored)
    assert "spec.template: Invalid value" in refusal


@pytest.mark.parametrize(
    "field", ["workload", "optimize.batchSize.total", "checkpoint.volumeClaimName"]
)
def test_taking_away_is_an_edit_too(
    control_plane: RunningControlPlane, path: str, field: str
) -> None:
    patch: Json = {"spec": {}}
    set_field(patch["spec"], field, None)
    refusal = _refusal(control_plane, "PATCH", f"{path}?dryRun=All", patch)
    assert f"spec.{field}: Invalid value" in refusal


@pytest.mark.parametrize(("field", "value"), MUTABLE)
def test_how_a_job_is_treated_may_change(
    control_plane: RunningControlPlane, path: str, field: str, value: Any
) -> None:
    edited = _edited(control_plane, path, field, value)
    stored = control_plane.client().request("PUT", path, edited)
    assert stored["metadata"]["generation"] == 2


def test_the_same_manifest_may_be_applied_again(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    manifest = json.dumps(job_manifest(**RICH))
    for expected in ("created", "unchanged"):
        done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
        assert done.stdout.endswith(f"{expected}\n")


def _set_status(control_plane: RunningControlPlane, path: str, **status: Any) -> Json:
    return control_plane.client().merge(f"{path}/status", {"status": status})


def test_spec_and_status_are_written_apart(control_plane: RunningControlPlane, path: str) -> None:
    client = control_plane.client()
    assert "status" not in client.merge(path, {"status": {"attempt": 7}})
    stored = client.merge(f"{path}/status", {"status": {"attempt": 7}, "spec": {"priority": 3}})
    assert (stored["status"]["attempt"], stored["spec"]["priority"]) == (7, 0)
    assert stored["metadata"]["generation"] == 1


@pytest.mark.parametrize("status", [{"attempt": 2}, {"attempt": None}])
def test_the_attempt_never_goes_back(
    control_plane: RunningControlPlane, path: str, status: Json
) -> None:
    _set_status(control_plane, path, attempt=3)
    refusal = _refusal(control_plane, "PATCH", f"{path}/status", {"status": status})
    assert "status.attempt: Invalid value:" in refusal
    assert "never decreases" in refusal
    _set_status(control_plane, path, attempt=4)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_status_stays(control_plane: RunningControlPlane, path: str, phase: str) -> None:
    _set_status(control_plane, path, attempt=3, phase=phase)
    refusal = _refusal(control_plane, "PATCH", f"{path}/status", {"status": None})
    assert "status: Invalid value: cannot be removed" in refusal


def test_a_status_has_a_phase_and_an_attempt(control_plane: RunningControlPlane, path: str) -> None:
    """Else their removal would be no change that a rule of theirs sees."""
    status = _set_status(control_plane, path, observedGeneration=1)["status"]
    assert (status["phase"], status["attempt"]) == ("Pending", 0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_job_stays_finished_and_as_it_was(
    control_plane: RunningControlPlane, path: str, phase: str
) -> None:
    _set_status(control_plane, path, phase=phase)
    for status in ({"phase": "Running"}, {"phase": None}):
        refusal = _refusal(control_plane, "PATCH", f"{path}/status", {"status": status})
        assert "Succeeded and Failed are final" in refusal
    refusal = _refusal(control_plane, "PATCH", path, {"spec": {"priority": 1}})
    assert "spec: Invalid value: is immutable once the job has finished" in refusal
    client = control_plane.client()
    assert client.merge(path, {"metadata": {"labels": {"kept": "yes"}}})
    assert _set_status(control_plane, path, summary={"cost": "0.10"})


BAD_STATUS: list[tuple[Json, str]] = [
    ({"phase": "Dancing"}, "status.phase"),
    ({"attempt": -1}, "status.attempt"),
    ({"summary": {"where": "x" * 257}}, "status.summary.where"),
    ({"measurement": {"memoryBytes": 1}}, "status.measurement"),
    ({"placement": {"workers": [{"rank": 0, "node": "a", "gpus": ["0"]}]}}, "gpus[0]"),
    ({"conditions": [{"type": "Ready", "status": "Yes"}]}, "status.conditions[0]"),
]


@pytest.mark.parametrize(("status", "named"), BAD_STATUS)
def test_a_bad_status_is_refused(
    control_plane: RunningControlPlane, path: str, status: Json, named: str
) -> None:
    refusal = _refusal(control_plane, "PATCH", f"{path}/status", {"status": status})
    assert named in refusal


def test_a_profile_stays_about_its_workload(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    collection = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpuprofiles"
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUProfile"}
    profile = head | {"metadata": {"name": "p"}, "spec": {"fingerprint": "f", "image": "trainer"}}
    control_plane.client().create(collection, profile)
    refusal = _refusal(
        control_plane, "PATCH", f"{collection}/p", {"spec": {"fingerprint": "other"}}
    )
    assert "spec: Invalid value: cannot be changed" in refusal
