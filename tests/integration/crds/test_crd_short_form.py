"""The short form of a spec on a real API server: what it takes, refuses and holds fast."""

import json
from typing import Any

import pytest

from gpujob_api.manifest import gpujob_from_manifest
from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.jobs import job_manifest, set_field, short_manifest

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
RICH: Json = {
    "args": ["--epochs", "3"],
    "env": [{"name": "SEED", "value": "1"}],
    "gpus": "H100:2",
    "gpu.memory": "20Gi",
}
NEITHER = "spec.template: Required value: is required: give template, or image with command, args"
BOTH = "cannot be combined with image, command, args and env; move them into the container of"
REFUSED: list[tuple[Json, str]] = [
    ({"image": None}, NEITHER),
    ({"template": job_manifest()["spec"]["template"]}, BOTH),
    ({"template": job_manifest()["spec"]["template"], "image": None}, BOTH),
    ({"image": ""}, "spec.image: Invalid value"),
    ({"command": "python train.py"}, "spec.command: Invalid value"),
    ({"env": [{"name": "GPUJOB_UID", "value": "1"}]}, "GPUJOB_UID is set by the operator"),
    ({"env": [{"name": "A"}, {"name": "A"}]}, "spec.env[1]: Duplicate value"),
    ({"env": [{"name": "A", "vale": "1"}]}, 'unknown field "spec.env[0].vale"'),
    ({"gpus": 0}, "spec.gpus: Invalid value"),
    ({"gpus": "17"}, "spec.gpus: Invalid value"),
    ({"gpus": "2:H100"}, "spec.gpus: Invalid value"),
    (
        {"gpus": 2, "gpusPerWorker": 2},
        "spec.gpus: Invalid value: cannot be combined with gpusPerWorker",
    ),
    ({"gpus": "H100", "gpu": {"models": ["A10"]}}, "cannot be combined with gpu.models"),
    ({"gpus": "H100:2", "sharing": {"mode": "Shared"}}, "or one GPU in gpus"),
    ({"gpus": 2, "sharing": {"mode": "Shared"}}, "or one GPU in gpus"),
]
TAKEN: list[Json] = [
    {},
    {"gpus": 16},
    {"gpus": "NVIDIA H100 80GB HBM3:16"},
    {"gpus": "H100", "sharing.mode": "Shared"},
    {"gpus": 1, "sharing.mode": "Shared"},
    {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
]
CHANGED: list[tuple[str, Any]] = [
    ("image", "other"),
    ("command", ["python", "other.py"]),
    ("args", ["--epochs", "4"]),
    ("env.0.value", "2"),
    ("gpus", "H100"),
    ("gpus", 2),
]


def _path(namespace: str, name: str = "") -> str:
    return f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs/{name}".rstrip("/")


def _refusal(control_plane: RunningControlPlane, method: str, path: str, body: Json) -> str:
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as caught:
        control_plane.client().request(method, path, body, content)
    assert caught.value.code in (400, 422)
    return str(caught.value)


@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_a_bad_field_is_refused_with_the_next_step(
    control_plane: RunningControlPlane, fields: Json, said: str
) -> None:
    manifest = short_manifest()
    manifest["spec"] |= fields
    path = f"{_path('default')}?dryRun=All&fieldValidation=Strict"
    assert said in _refusal(control_plane, "POST", path, manifest)


@pytest.mark.parametrize("fields", TAKEN)
def test_a_good_one_is_taken_and_read(control_plane: RunningControlPlane, fields: Json) -> None:
    path = f"{_path('default')}?dryRun=All&fieldValidation=Strict"
    stored = control_plane.client().create(path, short_manifest(**fields))
    spec = gpujob_from_manifest(stored).spec
    assert spec.worker_container()["command"] == ["python", "train.py"]
    assert "template" not in stored["spec"]


@pytest.fixture
def stored(control_plane: RunningControlPlane, namespace: str) -> str:
    control_plane.client().create(_path(namespace), short_manifest(**RICH))
    return _path(namespace, "job")


@pytest.mark.parametrize(("field", "value"), CHANGED)
def test_it_is_held_fast_as_a_template_is(
    control_plane: RunningControlPlane, stored: str, field: str, value: Any
) -> None:
    edited = control_plane.client().get(stored)
    set_field(edited["spec"], field, value)
    refusal = _refusal(control_plane, "PUT", f"{stored}?dryRun=All", edited)
    assert f"spec.{field.partition('.')[0]}: Invalid value" in refusal
    assert "create a new GPUJob instead" in refusal


@pytest.mark.parametrize("field", ["command", "args", "env", "gpus"])
def test_taking_away_is_an_edit_too(
    control_plane: RunningControlPlane, stored: str, field: str
) -> None:
    refusal = _refusal(control_plane, "PATCH", f"{stored}?dryRun=All", {"spec": {field: None}})
    assert "cannot be added or removed; create a new GPUJob instead" in refusal


def test_a_job_keeps_its_form(
    control_plane: RunningControlPlane, namespace: str, stored: str
) -> None:
    edited = control_plane.client().get(stored)
    for name in ("image", "command", "args", "env"):
        del edited["spec"][name]
    edited["spec"]["template"] = job_manifest()["spec"]["template"]
    refusal = _refusal(control_plane, "PUT", f"{stored}?dryRun=All", edited)
    assert "cannot be added or removed" in refusal
    control_plane.client().create(_path(namespace), job_manifest("long"))
    patch: Json = {"spec": {"template": None, "image": "trainer"}}
    refusal = _refusal(control_plane, "PATCH", f"{_path(namespace, 'long')}?dryRun=All", patch)
    assert "cannot be added or removed" in refusal


def test_other_fields_may_change_and_a_copy_is_applied_again(
    control_plane: RunningControlPlane, namespace: str, stored: str
) -> None:
    control_plane.client().request(
        "PATCH", stored, {"spec": {"priority": 4}}, "application/merge-patch+json"
    )
    manifest = json.dumps(short_manifest(**RICH, priority=5))
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    assert control_plane.client().get(stored)["spec"]["priority"] == 5
