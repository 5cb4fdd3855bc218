"""Bad objects do not get past the API server, and its answer names the field."""

import json
from typing import Any

import pytest
import yaml

from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.settings import OptimizeMode, Toggle
from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.jobs import job_manifest

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

WORKER = "template.spec.containers.0"
# Fields of spec, the field that the answer names, and words of the answer.
REFUSED: list[tuple[Json, str, str]] = [
    ({"gpu.memory": "16GB"}, "spec.gpu.memory", "such as 20Gi or 512Mi"),
    ({"gpu.memory": "NaN"}, "spec.gpu.memory", "such as 20Gi or 512Mi"),
    ({"gpu.memory": "1e308"}, "spec.gpu.memory", "such as 20Gi or 512Mi"),
    ({"gpu.memory": 1e308}, "spec.gpu.memory", "must be of type integer,string"),
    ({"gpu.memory": 0}, "spec.gpu.memory", "from 1Mi to 16Ti"),
    ({"gpu.memory": "-1Gi"}, "spec.gpu.memory", "such as 20Gi or 512Mi"),
    ({"gpu.memory": 20}, "spec.gpu.memory", "with a unit"),
    ({"gpu.memory": "17Ti"}, "spec.gpu.memory", "from 1Mi to 16Ti"),
    ({"gpu.models": ["m" * 129]}, "spec.gpu.models[0]", "Too long"),
    ({"gpu.models": [str(n) for n in range(17)]}, "spec.gpu.models", "at most 16 items"),
    ({"workers": 10**6}, "spec.workers", "less than or equal to 1024"),
    ({"workers": 0}, "spec.workers", "greater than or equal to 1"),
    ({"workers": -3}, "spec.workers", "greater than or equal to 1"),
    ({"workers": 1.5}, "spec.workers", "must be of type integer"),
    ({"gpusPerWorker": 17}, "spec.gpusPerWorker", "less than or equal to 16"),
    ({"queue": "Research Team"}, "spec.queue", "should match"),
    ({"queue": "q" * 64}, "spec.queue", "Too long"),
    ({"sharing.mode": "Both"}, "spec.sharing.mode", '"Auto", "Shared", "Exclusive"'),
    ({"optimize.mode": "off"}, "spec.optimize.mode", '"Auto", "Recommend", "Off"'),
    ({"optimize.precision": "int4"}, "spec.optimize.precision", '"bfloat16"'),
    ({"optimize.precision": "float8"}, "spec.optimize.precision", '"bfloat16"'),
    ({"optimize.compile": "maybe"}, "spec.optimize.compile", '"Auto", "On", "Off"'),
    ({"checkpoint.interval": "10"}, "spec.checkpoint.interval", "should match"),
    (
        {"checkpoint.resumeArguments": ["--resume"]},
        "spec.checkpoint.resumeArguments",
        "needs path",
    ),
    ({"checkpoint.path": "../../etc/passwd"}, "spec.checkpoint.path", "must not have .. in it"),
    ({"checkpoint.path": "runs/.."}, "spec.checkpoint.path", "must not have .. in it"),
    ({"checkpoint.keep": 1}, "spec.checkpoint.keep", "greater than or equal to 2"),
    ({"retry.limit": 1000}, "spec.retry.limit", "less than or equal to 100"),
    ({"disruption": "Never"}, "spec.disruption", '"Avoid", "Allow"'),
    ({"sharing.mode": "Shared", "gpusPerWorker": 2}, "spec.sharing.mode", "gpusPerWorker: 1"),
    (
        {"optimize.batchSize.total": 250, "optimize.batchSize.perStep": 64},
        "spec.optimize.batchSize.total",
        "divisible by perStep",
    ),
    ({"optimize.batchSize.perStep": "64"}, "spec.optimize.batchSize.perStep", "should match"),
    (
        {"template.spec.containers": [{"name": one, "image": "x"} for one in ("main", "other")]},
        "spec.template.spec.containers",
        "named worker",
    ),
    (
        {"template.spec.containers": [{"name": "worker"}]},
        "spec.template.spec.containers",
        "needs an image in every container",
    ),
    (
        {"template.spec.initContainers": [{"name": "fetch"}]},
        "spec.template.spec.containers",
        "needs an image in every container",
    ),
    ({"template.spec.containers": []}, "spec.template.spec.containers", "at least 1 items"),
    (
        {"template.spec.automountServiceAccountToken": True},
        "spec.template.spec.automountServiceAccountToken",
        "no access to the API server",
    ),
    ({"template.spec.restartPolicy": "Always"}, "spec.template.spec.restartPolicy", '"Never"'),
    (
        {f"{WORKER}.resources": {"limits": {"nvidia.com/gpu": 1}}},
        "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu",
        "spec.gpusPerWorker",
    ),
    (
        {f"{WORKER}.env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        "spec.template.spec.containers[0].env[0].name",
        "NVIDIA_VISIBLE_DEVICES is set by the operator",
    ),
    (
        {"template.metadata": {"labels": {"gpujob.dev/job": "other"}}},
        "spec.template.metadata.labels",
        "set by the operator",
    ),
    # Unknown fields, in our own part and in the template.
    ({"qeue": "research"}, 'unknown field "spec.qeue"', "strict decoding error"),
    (
        {f"{WORKER}.imge": "trainer"},
        'unknown field "spec.template.spec.containers[0].imge"',
        "strict decoding error",
    ),
    ({"template.spec.hostPID": True}, 'unknown field "spec.template.spec.hostPID"', "strict"),
    ({"template.spec.nodeName": "a"}, 'unknown field "spec.template.spec.nodeName"', "strict"),
]


def _refusal(control_plane: RunningControlPlane, plural: str, manifest: Json) -> str:
    """What the API server says; asked as strictly as kubectl asks, without writing anything."""
    folder = "" if plural in ("gpunodes", "gpuqueues") else "/namespaces/default"
    path = f"/apis/gpujob.dev/v1alpha1{folder}/{plural}?dryRun=All&fieldValidation=Strict"
    with pytest.raises(ApiError) as caught:
        control_plane.client().create(path, manifest)
    assert caught.value.code in (400, 422)
    return str(caught.value)


@pytest.mark.parametrize(("fields", "field", "words"), REFUSED)
def test_a_bad_field_is_refused_by_name(
    control_plane: RunningControlPlane, fields: Json, field: str, words: str
) -> None:
    refusal = _refusal(control_plane, "gpujobs", job_manifest(**fields))
    assert field in refusal
    assert words in refusal


@pytest.mark.parametrize("name", ["a" * 53, "a.b", "a" * 254])
def test_names_that_would_not_fit_into_pod_names_are_refused(
    control_plane: RunningControlPlane, name: str
) -> None:
    said = _refusal(control_plane, "gpujobs", job_manifest(name))
    assert "metadata.name" in said
    assert "because pod names append the attempt and the rank" in said or len(name) > 253


@pytest.mark.parametrize(("change", "field"), [({"spec": {}}, "spec.template"), ({}, "spec")])
def test_what_is_missing_is_named(
    control_plane: RunningControlPlane, change: Json, field: str
) -> None:
    manifest = job_manifest()
    del manifest["spec"]
    refusal = _refusal(control_plane, "gpujobs", manifest | change)
    assert f"{field}: Required value" in refusal


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu.memory": "16GB"}, 'spec.gpu.memory: Invalid value: "16GB"'),
        ({"qeue": "research"}, 'unknown field "spec.qeue"'),
        ({f"{WORKER}.imge": "a"}, 'unknown field "spec.template.spec.containers[0].imge"'),
    ],
)
def test_kubectl_apply_says_so(
    control_plane: RunningControlPlane, namespace: str, fields: Json, said: str
) -> None:
    manifest = json.dumps(job_manifest(**fields))
    done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_what_is_no_number_does_not_leave_kubectl(
    control_plane: RunningControlPlane, namespace: str, value: str
) -> None:
    manifest = yaml.safe_dump(job_manifest(**{"gpu.memory": "VALUE"})).replace("VALUE", value)
    done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert done.returncode != 0
    assert "unsupported value" in done.stderr


@pytest.mark.parametrize(
    ("written", "mode", "compiled"),
    [
        ("{mode: Off, compile: no}", False, False),
        ('{mode: "Off", compile: On}', "Off", True),
        ('{mode: Auto, compile: "On"}', "Auto", "On"),
    ],
)
def test_unquoted_off_and_on_are_understood(
    control_plane: RunningControlPlane, namespace: str, written: str, mode: Any, compiled: Any
) -> None:
    manifest = yaml.safe_dump(job_manifest(optimize="HERE")).replace("HERE", written)
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    shown = json.loads(control_plane.kubectl("get", "gj/job", "-n", namespace, "-o=json").stdout)
    optimize = shown["spec"]["optimize"]
    assert (optimize["mode"], optimize["compile"]) == (mode, compiled)
    read = gpujob_from_manifest(shown).spec.optimize
    assert read.mode is OptimizeMode(mode or "Off")
    assert read.compile is Toggle({False: "Off", True: "On"}.get(compiled, compiled))


def test_a_client_that_does_not_ask_for_strictness_is_warned(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    manifest = json.dumps(job_manifest(qeue="research"))
    done = control_plane.kubectl(
        "create", "-n", namespace, "--validate=warn", "-f", "-", stdin=manifest
    )
    assert 'Warning: unknown field "spec.qeue"' in done.stderr
    shown = control_plane.kubectl("get", "gj", "job", "-n", namespace, "-o", "json")
    assert "qeue" not in json.loads(shown.stdout)["spec"]


BAD_CLUSTER_OBJECTS: list[tuple[str, Json, str]] = [
    ("GPUQueue", {"weight": 0}, "spec.weight"),
    ("GPUQueue", {"parent": "itself"}, "spec.parent"),
    ("GPUQueue", {"namespaces": ["Team A"]}, "spec.namespaces[0]"),
    ("GPUQueue", {"priority": {"minimum": 2, "maximum": 1}}, "spec.priority.minimum"),
    ("GPUQueue", {"sharingGroup": "Lab 1"}, "spec.sharingGroup"),
    ("GPUQueue", {"nominal": {"gpus": -1}}, "spec.nominal.gpus"),
    ("GPUQueue", {"nominal": {"gpuMemory": "16GB"}}, "spec.nominal.gpuMemory"),
    ("GPUNode", {"pricePerGpuHour": -1}, "spec.pricePerGpuHour"),
    ("GPUNode", {"pricePerGpuHour": 1e308}, "spec.pricePerGpuHour"),
]


@pytest.mark.parametrize(("kind", "spec", "field"), BAD_CLUSTER_OBJECTS)
def test_bad_queues_and_nodes_are_refused_by_name(
    control_plane: RunningControlPlane, kind: str, spec: Json, field: str
) -> None:
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": kind, "metadata": {"name": "itself"}}
    assert field in _refusal(control_plane, f"{kind.lower()}s", head | {"spec": spec})
