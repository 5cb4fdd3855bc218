"""What the API server refuses of a GPUService."""

from typing import Any

import pytest

from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.jobs import job_manifest

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


def _service(name: str = "answers", **spec: Any) -> Json:
    template = job_manifest()["spec"]["template"]
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUService",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def _path(namespace: str) -> str:
    return f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpuservices"


@pytest.mark.parametrize("name", ["a" * 41, "a.b", "1st", "a-"])
def test_a_name_that_a_service_cannot_have_is_refused(
    control_plane: RunningControlPlane, namespace: str, name: str
) -> None:
    with pytest.raises(ApiError) as caught:
        control_plane.client().create(f"{_path(namespace)}?dryRun=All", _service(name))
    assert caught.value.code == 422
    assert "metadata.name" in str(caught.value)


def test_the_longest_name_is_accepted(control_plane: RunningControlPlane, namespace: str) -> None:
    name = "a" * 40
    stored = control_plane.client().create(f"{_path(namespace)}?dryRun=All", _service(name))
    assert stored["metadata"]["name"] == name


@pytest.mark.parametrize("spec", [{}, {"port": 8001}])
def test_the_port_cannot_be_changed(
    control_plane: RunningControlPlane, namespace: str, spec: Json
) -> None:
    """The Service in front of the replicas keeps the port that it was created with."""
    client, path = control_plane.client(), _path(namespace)
    client.create(path, _service(**spec))
    edited = client.get(f"{path}/answers")
    edited["spec"]["port"] = 9000
    with pytest.raises(ApiError) as caught:
        client.request("PUT", f"{path}/answers?dryRun=All", edited, "application/json")
    assert "spec.port" in str(caught.value)
    assert "create a new GPUService instead" in str(caught.value)
    edited["spec"] |= {"port": spec.get("port", 8000), "priority": 3}
    client.request("PUT", f"{path}/answers?dryRun=All", edited, "application/json")


@pytest.mark.parametrize(
    ("optimize", "field"),
    [
        ({"precision": "bfloat16"}, "spec.optimize.precision"),
        ({"batching": {"maxSize": 8}}, "spec.optimize.batching.maxSize"),
    ],
)
def test_settings_that_an_engine_of_the_users_own_would_not_get_are_refused(
    control_plane: RunningControlPlane, namespace: str, optimize: Json, field: str
) -> None:
    client, path = control_plane.client(), f"{_path(namespace)}?dryRun=All"
    with pytest.raises(ApiError) as caught:
        client.create(path, _service(optimize={"backend": "External", **optimize}))
    assert caught.value.code == 422
    assert field in str(caught.value)
    assert "with backend External, which is left as it is" in str(caught.value)
    client.create(path, _service(optimize={"backend": "Eager", **optimize}))
    client.create(path, _service(optimize={"backend": "External", "precision": "Auto"}))


@pytest.mark.parametrize(
    ("replicas", "optimize", "why"),
    [
        ({"minimum": 1}, {}, "needs minimum 0"),
        ({"minimum": 0, "stopAfterSeconds": 59}, {}, "must not be above stopAfterSeconds"),
        ({"minimum": 0}, {"backend": "External"}, "must be absent with backend External"),
    ],
)
def test_replicas_that_cannot_park_are_refused(
    control_plane: RunningControlPlane, namespace: str, replicas: Json, optimize: Json, why: str
) -> None:
    client, path = control_plane.client(), f"{_path(namespace)}?dryRun=All"
    service = _service(replicas={**replicas, "parkAfterSeconds": 60}, optimize=optimize)
    with pytest.raises(ApiError) as caught:
        client.create(path, service)
    assert caught.value.code == 422
    assert "spec.replicas.parkAfterSeconds" in str(caught.value)
    assert why in str(caught.value)
    client.create(path, _service(replicas={"minimum": 0, "parkAfterSeconds": 60}))
