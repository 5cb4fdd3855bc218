"""The worker's packages in pods of any image."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.settings import Settings
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.pod_requests import pod_requests
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import make_job, make_template, placed

IMAGE = "registry.example.org/gpujob-operator:1"
CONFIGURATION = Configuration(worker_package_image=IMAGE)
FOLDER = "/gpujob/package"


def spec_of(configuration: Configuration = CONFIGURATION, **worker: Any) -> Any:
    template = make_template()
    template["spec"]["containers"][0] |= worker
    job = placed(make_job("train", template=template))
    return worker_pod(CreatePod(job, 0, Settings()), configuration)["spec"]


def path_of(spec: Any) -> str | None:
    (worker,) = spec["containers"]
    found = [entry.get("value") for entry in worker["env"] if entry["name"] == "PYTHONPATH"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("image", ["trainer", "python:3.12-slim", "host:5000/my/gpujob-worker-x:1"])
def test_another_image_gets_the_packages(image: str) -> None:
    spec = spec_of(image=image)
    (copier,) = spec["initContainers"]
    assert copier["image"] == IMAGE
    assert copier["command"][-1] == FOLDER
    (volume,) = [one for one in spec["volumes"] if one["name"] == copier["volumeMounts"][0]["name"]]
    assert "emptyDir" in volume
    for container in (copier, *spec["containers"]):
        assert copier["volumeMounts"][0] in container["volumeMounts"]
    assert path_of(spec) == f"{FOLDER}/hook"


@pytest.mark.parametrize(
    "image",
    [
        "gpujob-worker:dev",
        "host:5000/team/gpujob-worker",
        "gpujob-worker@sha256:0",
        "gpujob-worker",
    ],
)
def test_the_workers_image_has_them_already(image: str) -> None:
    spec = spec_of(image=image)
    assert "initContainers" not in spec
    assert path_of(spec) is None


@pytest.mark.parametrize("image", [None, ""])
def test_without_an_image_to_copy_from_nothing_is_added(image: str | None) -> None:
    spec = spec_of(replace(CONFIGURATION, worker_package_image=image))
    assert "initContainers" not in spec
    assert path_of(spec) is None


def test_the_templates_own_path_stands_behind_the_hook() -> None:
    spec = spec_of(env=[{"name": "PYTHONPATH", "value": "/app:/libraries"}])
    assert path_of(spec) == f"{FOLDER}/hook:/app:/libraries"


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "GPUJOB_INJECT", "value": "0"},
        {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
    ],
)
def test_a_template_can_keep_them_out(entry: dict[str, Any]) -> None:
    spec = spec_of(env=[entry])
    assert "initContainers" not in spec
    assert entry in spec["containers"][0]["env"]


def test_the_pod_asks_for_no_more_and_a_quota_finds_its_requests() -> None:
    resources = {
        "requests": {"cpu": "2", "memory": "4Gi", "example.com/nic": "1"},
        "limits": {"memory": "8Gi"},
    }
    spec = spec_of(resources=resources)
    plain = spec_of(Configuration(), resources=resources)
    (copier,) = spec["initContainers"]
    assert copier["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "8Gi"},
    }
    assert pod_requests(spec) == pod_requests(plain)
    assert "resources" not in spec_of(resources={})["initContainers"][0]


def test_the_copier_is_restricted_and_sees_no_gpu() -> None:
    (copier,) = spec_of()["initContainers"]
    assert copier["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in copier["env"]


def test_the_users_init_containers_stay() -> None:
    template = make_template(initContainers=[{"name": "download", "image": "data"}])
    job = placed(make_job("train", template=template))
    spec = worker_pod(CreatePod(job, 0, Settings()), CONFIGURATION)["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["gpujob-package", "download"]


def test_the_only_container_is_the_worker_whatever_it_is_called() -> None:
    spec = spec_of(name="trainer")
    (worker,) = spec["containers"]
    assert worker["name"] == "worker"
    assert "GPUJOB_SETTINGS" in {entry["name"] for entry in worker["env"]}
