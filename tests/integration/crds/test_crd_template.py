"""The pod template against Kubernetes' own: nothing invented, nothing left out by mistake."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.crds import schema_of
from tests.harness.jobs import job_manifest, set_field

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
# What a template may not say, and so does not know: the operator or the kubelet decides it, it
# breaks the wall to other jobs on the node, or Kubernetes has deprecated it.
NOT_THERE: dict[str, set[str]] = {
    "PodSpec": {
        *("nodeName", "schedulingGates", "schedulingGroup", "priority", "overhead"),
        *("hostNetwork", "hostPID", "hostIPC", "hostname", "hostnameOverride", "subdomain"),
        *("setHostnameAsFQDN", "ephemeralContainers", "resourceClaims", "resources"),
        *("readinessGates", "os", "serviceAccount"),
    },
    "Container": {"resizePolicy", "restartPolicy", "restartPolicyRules"},
    "EnvVar": set(),
    "VolumeMount": set(),
    "ResourceRequirements": {"claims"},
    "Toleration": set(),
    "Volume": {
        *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "iscsi"),
        *("flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "rbd"),
        *("photonPersistentDisk", "portworxVolume", "quobyte", "scaleIO", "storageos"),
        "vsphereVolume",
    },
    "PodSecurityContext": set(),
    "ConfigMapVolumeSource": set(),
    "SecretVolumeSource": set(),
    "DownwardAPIVolumeSource": set(),
    "ProjectedVolumeSource": set(),
    "VolumeProjection": set(),
    "ConfigMapProjection": set(),
    "SecretProjection": set(),
    "DownwardAPIProjection": set(),
}
PLACES = {
    "PodSpec": "",
    "Container": "containers[]",
    "EnvVar": "containers[].env[]",
    "VolumeMount": "containers[].volumeMounts[]",
    "ResourceRequirements": "containers[].resources",
    "Toleration": "tolerations[]",
    "Volume": "volumes[]",
    "PodSecurityContext": "securityContext",
    "ConfigMapVolumeSource": "volumes[].configMap",
    "SecretVolumeSource": "volumes[].secret",
    "DownwardAPIVolumeSource": "volumes[].downwardAPI",
    "ProjectedVolumeSource": "volumes[].projected",
    "VolumeProjection": "volumes[].projected.sources[]",
    "ConfigMapProjection": "volumes[].projected.sources[].configMap",
    "SecretProjection": "volumes[].projected.sources[].secret",
    "DownwardAPIProjection": "volumes[].projected.sources[].downwardAPI",
}
# Lists whose entries Kubernetes compares with each other, and how long each may be.
QUADRATIC: dict[str, tuple[int, Any]] = {
    "securityContext.sysctls": (64, {"name": "net.ipv4.tcp_syncookies", "value": "1"}),
    "volumes.0.configMap.items": (256, {"key": "k", "path": "p"}),
    "volumes.0.secret.items": (256, {"key": "k", "path": "p"}),
    "volumes.0.downwardAPI.items": (256, {"path": "p"}),
    "volumes.0.projected.sources": (32, {"serviceAccountToken": {"path": "p"}}),
    "volumes.0.projected.sources.0.configMap.items": (64, {"key": "k", "path": "p"}),
    "volumes.0.projected.sources.0.secret.items": (64, {"key": "k", "path": "p"}),
    "volumes.0.projected.sources.0.downwardAPI.items": (64, {"path": "p"}),
}
RICH: Json = {
    "template.metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
    "template.spec.terminationGracePeriodSeconds": 60,
    "template.spec.restartPolicy": "Never",
    "template.spec.nodeSelector": {"zone": "a"},
    "template.spec.tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "template.spec.securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
    "template.spec.imagePullSecrets": [{"name": "registry"}],
    "template.spec.volumes": [
        {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "map", "configMap": {"name": "m", "defaultMode": 420, "optional": True}},
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
                    {"serviceAccountToken": {"path": "token", "audience": "gpujob"}},
                ]
            },
        },
        {"name": "set", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
    ],
    "template.spec.initContainers": [
        {"name": "fetch", "image": "fetcher", "args": ["all"]},
        {"name": "logs", "image": "logs", "restartPolicy": "Always"},
    ],
    "template.spec.containers.0.env": [
        {"name": "SEED", "value": "1"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}},
    ],
    "template.spec.containers.0.envFrom": [{"configMapRef": {"name": "common"}}],
    "template.spec.containers.0.resources": {
        "requests": {"cpu": 0.5, "memory": "1Gi", "hugepages-2Mi": "2Mi"},
        "limits": {"cpu": 2, "memory": "2Gi", "hugepages-2Mi": "2Mi"},
    },
    "template.spec.containers.0.volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "template.spec.containers.0.ports": [{"containerPort": 6006}],
    "template.spec.containers.0.securityContext": {"allowPrivilegeEscalation": False},
    "template.spec.affinity": {"podAntiAffinity": {}},
}


def _properties(place: str) -> set[str]:
    schema = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]
    schema = schema["properties"]["spec"]
    for step in filter(None, place.split(".")):
        schema = schema["properties"][step.removesuffix("[]")]
        schema = schema["items"] if step.endswith("[]") else schema
    return set(schema["properties"])


@pytest.mark.parametrize("definition", PLACES)
def test_every_field_of_kubernetes_is_there_or_left_out_on_purpose(
    control_plane: RunningControlPlane, definition: str
) -> None:
    document = control_plane.client().get("/openapi/v3/api/v1")
    theirs = set(
        document["components"]["schemas"][f"io.k8s.api.core.v1.{definition}"]["properties"]
    )
    ours = _properties(PLACES[definition])
    assert ours <= theirs
    assert theirs - ours == NOT_THERE[definition]


@pytest.mark.parametrize("field", QUADRATIC)
def test_lists_whose_entries_are_compared_with_each_other_are_bounded(
    control_plane: RunningControlPlane, namespace: str, field: str
) -> None:
    """A dry run of a pod with 6,000 of them takes the API server more than a second."""
    jobs = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs?dryRun=All"
    most, entry = QUADRATIC[field]
    where: Json = {"template.spec.volumes": [{"name": "v"}]}
    if ".sources.0." in field:
        where["template.spec.volumes.0.projected.sources"] = [{}]
    for count in (most, most + 1):
        manifest = job_manifest(**where)
        set_field(manifest["spec"], f"template.spec.{field}", [entry] * count)
        if count == most:
            control_plane.client().create(jobs, manifest)
            continue
        with pytest.raises(ApiError) as caught:
            control_plane.client().create(jobs, manifest)
        assert f"must have at most {most} items" in str(caught.value)


def test_the_only_container_may_have_any_name(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    jobs = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs?dryRun=All"
    manifest = job_manifest(**{"template.spec.containers.0.name": "trainer"})
    (worker,) = control_plane.client().create(jobs, manifest)["spec"]["template"]["spec"][
        "containers"
    ]
    assert worker["name"] == "trainer"


def test_a_rich_template_is_kept_and_makes_a_pod(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    client = control_plane.client()
    jobs = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs?fieldValidation=Strict"
    manifest = job_manifest(**RICH)
    template = client.create(jobs, manifest)["spec"]["template"]
    assert template == manifest["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
    pod["metadata"] = {"name": "job-1-0", **template["metadata"]}
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict"
    assert client.create(path, pod)["spec"]["restartPolicy"] == "Never"
