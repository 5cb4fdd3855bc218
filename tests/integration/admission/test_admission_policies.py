"""The chart's admission policies on a real API server, for users with few rights (I12, I15)."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_local.control_plane.api_client import ApiError, Json
from gpujob_operator.decide.model.checkpoint_claim import ClaimSize, ClaimTemplate
from gpujob_operator.render.claim import default_claim
from tests.harness.chart import NAMESPACE
from tests.harness.jobs import job_manifest, short_manifest
from tests.harness.tenants import (
    CLAIMS_RULE,
    FRONTS_RULE,
    JOBS_RULE,
    OPERATOR,
    PODS_RULE,
    SERVICES_RULE,
    Tenants,
    collection,
    may_impersonate,
    pod_manifest,
    rendered_pod,
)

pytestmark = [pytest.mark.promise("I12"), pytest.mark.cluster]

POD = "template.spec"
WORKER = "template.spec.containers.0"
SECURITY = f"{WORKER}.securityContext"
POD_SECURITY = f"{POD}.securityContext"
PROBE = {"httpGet": {"path": "/", "port": 80, "host": "169.254.169.254"}}
SIDECAR = {"name": "side", "image": "i", "securityContext": {"privileged": True}}
# Fields of spec that Pod Security "restricted" forbids, and the field in the policy's answer.
FORBIDDEN: list[tuple[Json, str]] = [
    ({f"{SECURITY}.privileged": True}, "securityContext.privileged"),
    ({f"{POD}.initContainers": [SIDECAR]}, "securityContext.privileged"),
    ({f"{SECURITY}.allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
    ({f"{SECURITY}.capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}, "capabilities"),
    ({f"{SECURITY}.capabilities": {"drop": ["NET_RAW"]}}, "capabilities"),
    ({f"{SECURITY}.capabilities": {}}, "capabilities"),
    ({f"{SECURITY}.runAsNonRoot": False}, "runAsNonRoot"),
    ({f"{POD_SECURITY}.runAsNonRoot": False}, "runAsNonRoot"),
    ({f"{SECURITY}.runAsUser": 0}, "runAsUser"),
    ({f"{POD_SECURITY}.runAsUser": 0}, "runAsUser"),
    ({f"{SECURITY}.seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
    ({f"{POD_SECURITY}.seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
    ({f"{SECURITY}.appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile"),
    (
        {
            "template.metadata": {
                "annotations": {
                    "container.apparmor.security.beta.kubernetes.io/worker": "unconfined"
                }
            }
        },
        "AppArmor",
    ),
    ({f"{SECURITY}.seLinuxOptions": {"type": "spc_t"}}, "seLinuxOptions"),
    ({f"{POD_SECURITY}.seLinuxOptions": {"user": "system_u"}}, "seLinuxOptions"),
    ({f"{SECURITY}.windowsOptions": {"hostProcess": True}}, "hostProcess"),
    ({f"{POD_SECURITY}.sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "sysctls"),
    ({f"{WORKER}.ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPort"),
    ({f"{WORKER}.livenessProbe": PROBE}, "probes and lifecycle hooks"),
    ({f"{WORKER}.lifecycle": {"preStop": {"httpGet": PROBE["httpGet"]}}}, "lifecycle hooks"),
    ({f"{POD}.volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath"),
    ({f"{POD}.volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "nfs"),
]
# procMount needs a user namespace to be valid at all, so Pod Security is not asked about it.
ALLOWED: list[Json] = [
    {},
    {f"{SECURITY}.capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
    {f"{SECURITY}.seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
    {f"{SECURITY}.seLinuxOptions": {"type": "container_t"}},
    {f"{POD_SECURITY}": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 0}},
    {f"{POD_SECURITY}.sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
    {f"{WORKER}.ports": [{"containerPort": 80}], f"{POD}.hostUsers": False},
    {f"{WORKER}.readinessProbe": {"httpGet": {"path": "/", "port": 80}}},
    {
        f"{POD}.volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "secret": {"secretName": "s"}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "m"}}]}},
            {"name": "d", "csi": {"driver": "d.example.org"}},
        ],
        f"{POD}.initContainers": [{"name": "logs", "image": "l", "restartPolicy": "Always"}],
    },
]


def names(cases: list[Any]) -> list[str]:
    fields = [case[0] if isinstance(case, tuple) else case for case in cases]
    return [f"{n} {' '.join(one)}" for n, one in enumerate(fields)]


@pytest.fixture(scope="module")
def restricted(tenants: Tenants) -> str:
    """A namespace with Pod Security: a second opinion on what the policies let through."""
    return tenants.namespace(enforce="restricted")


# -- who creates a job


def test_who_may_not_create_pods_may_not_create_a_gpujob(tenants: Tenants) -> None:
    ours, theirs = tenants.namespace(), tenants.namespace()
    editor = tenants.user(ours, "editor", JOBS_RULE)
    creator = tenants.user(ours, "creator", JOBS_RULE, PODS_RULE)
    said = tenants.refusal(editor, ours, "gpujobs", job_manifest())
    assert said.startswith("403 Forbidden"), said
    assert f"spec.template: system:serviceaccount:{ours}:editor may not create pods in " in said
    assert tenants.refusal(creator, ours, "gpujobs", job_manifest()) == ""
    said = tenants.refusal(editor, ours, "gpujobs", short_manifest())
    assert f"spec.image: system:serviceaccount:{ours}:editor may not create pods in " in said
    assert tenants.refusal(creator, ours, "gpujobs", short_manifest(gpus="H100")) == ""
    # Rights in one namespace are none in another, whatever GPUJobs may be created there.
    tenants.user(theirs, "creator", JOBS_RULE, PODS_RULE)
    assert "403" in tenants.refusal(creator, theirs, "gpujobs", job_manifest())


def test_a_template_is_not_changed_afterwards_and_other_fields_are(tenants: Tenants) -> None:
    """So the policies ask at the creation alone."""
    namespace = tenants.namespace()
    editor = tenants.user(namespace, "editor", JOBS_RULE)
    tenants.admin.create(collection(namespace, "gpujobs"), job_manifest())
    template = job_manifest(**{f"{WORKER}.image": "other"})
    said = tenants.refusal(editor, namespace, "gpujobs", template, "PATCH")
    assert "spec.template: Invalid value: cannot be changed" in said
    suspend = {"metadata": {"name": "job"}, "spec": {"suspend": True}}
    assert tenants.refusal(editor, namespace, "gpujobs", suspend, "PATCH") == ""
    editor.delete(f"{collection(namespace, 'gpujobs')}/job")


def test_a_service_account_is_named_only_by_who_may_impersonate_it(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    rules = (JOBS_RULE, PODS_RULE)
    user = tenants.user(namespace, "user", *rules)
    deputy = tenants.user(namespace, "deputy", *rules, may_impersonate("deployer"))
    job = job_manifest(**{f"{POD}.serviceAccountName": "deployer"})
    said = tenants.refusal(user, namespace, "gpujobs", job)
    assert "spec.template.spec.serviceAccountName" in said
    assert "may not impersonate the service account deployer" in said
    assert tenants.refusal(deputy, namespace, "gpujobs", job) == ""
    other = job_manifest(**{f"{POD}.serviceAccountName": "admin"})
    assert "may not impersonate" in tenants.refusal(deputy, namespace, "gpujobs", other)
    default = job_manifest(**{f"{POD}.serviceAccountName": "default"})
    assert tenants.refusal(user, namespace, "gpujobs", default) == ""


# -- what a template asks for


@pytest.mark.parametrize(("fields", "field"), FORBIDDEN, ids=names(FORBIDDEN))
def test_a_template_asks_for_nothing_that_restricted_forbids(
    tenants: Tenants, restricted: str, fields: Json, field: str
) -> None:
    job = job_manifest(**fields)
    said = tenants.refusal(tenants.admin, restricted, "gpujobs", job)
    assert "denied request: spec.template" in said, said
    assert field in said
    pod = tenants.refusal(
        tenants.admin, restricted, "pods", as_users(rendered_pod(job, restricted))
    )
    invalid = pod.startswith("422 Invalid")
    assert invalid or 'violates PodSecurity "restricted:latest"' in pod, "stricter than needed"


@pytest.mark.parametrize("fields", ALLOWED, ids=names(ALLOWED))
def test_a_template_asks_for_all_that_restricted_allows(
    tenants: Tenants, restricted: str, fields: Json
) -> None:
    job = job_manifest(**fields)
    assert tenants.refusal(tenants.admin, restricted, "gpujobs", job) == ""
    pod = as_users(rendered_pod(job, restricted))
    assert tenants.refusal(tenants.admin, restricted, "pods", pod) == ""


def as_users(pod: Json) -> Json:
    """The pod without what is the operator's alone, for Pod Security to judge."""
    metadata = {"name": pod["metadata"]["name"]}
    annotations = pod["metadata"]["annotations"]
    metadata["annotations"] = {
        key: value for key, value in annotations.items() if not key.startswith("gpujob.dev/")
    }
    return pod | {"metadata": metadata}


def test_proc_is_mounted_as_usual(tenants: Tenants, restricted: str) -> None:
    job = job_manifest(**{f"{SECURITY}.procMount": "Unmasked"})
    assert "procMount" in tenants.refusal(tenants.admin, restricted, "gpujobs", job)


@pytest.mark.parametrize(
    "fields",
    [
        {f"{SECURITY}.capabilities": {"drop": "ALL"}},
        {f"{SECURITY}.privileged": "true"},
        {f"{POD_SECURITY}.seccompProfile": "Unconfined"},
        {f"{POD_SECURITY}.runAsUser": "0"},
    ],
)
def test_a_field_of_another_type_never_gets_into_a_pod(tenants: Tenants, fields: Json) -> None:
    """A policy may read it as absent; the API server does not."""
    namespace = tenants.namespace()
    job = job_manifest(**fields)
    pod = as_users(rendered_pod(job, namespace))
    refused = tenants.refusal(tenants.admin, namespace, "gpujobs", job)
    assert refused or tenants.refusal(tenants.admin, namespace, "pods", pod)


def projected(**token: Any) -> Json:
    source = {"serviceAccountToken": {"path": "token", **token}}
    volume = {"name": "token", "projected": {"sources": [{"configMap": {"name": "m"}}, source]}}
    fields: Json = {f"{POD}.volumes": [{"name": "a", "emptyDir": {}}, volume]}
    return job_manifest(**fields)


@pytest.mark.parametrize("token", [{}, {"audience": ""}, {"audience": "vault"}])
def test_a_token_for_anybody_but_the_operator_is_refused(
    tenants: Tenants, restricted: str, token: Json
) -> None:
    said = tenants.refusal(tenants.admin, restricted, "gpujobs", projected(**token))
    assert "serviceAccountToken.audience: must be one of gpujob" in said


def test_a_token_for_the_operator_is_allowed(tenants: Tenants, restricted: str) -> None:
    job = projected(audience="gpujob")
    assert tenants.refusal(tenants.admin, restricted, "gpujobs", job) == ""


def test_a_certificate_of_the_pods_identity_is_refused(tenants: Tenants, restricted: str) -> None:
    certificate = {"signerName": "example.org/pod", "keyType": "ED25519"}
    volume = {"name": "v", "projected": {"sources": [{"podCertificate": certificate}]}}
    fields: Json = {f"{POD}.volumes": [volume]}
    job = job_manifest(**fields)
    assert "podCertificate" in tenants.refusal(tenants.admin, restricted, "gpujobs", job)


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_a_priority_class_of_the_system_is_refused(
    tenants: Tenants, restricted: str, name: str
) -> None:
    job = job_manifest(**{f"{POD}.priorityClassName": name})
    said = tenants.refusal(tenants.admin, restricted, "gpujobs", job)
    assert f"priorityClassName: must not be a class of the system, got {name}" in said
    batch = job_manifest(**{f"{POD}.priorityClassName": "batch"})
    assert tenants.refusal(tenants.admin, restricted, "gpujobs", batch) == ""


GPU_RESOURCES = (
    *("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.20gb.shared"),
    *("aliyun.com/gpu-mem", "volcano.sh/vgpu-memory", "nvidia.com/gpumem", "amd.com/gpu"),
    "deviceclass.resource.kubernetes.io/mig.nvidia.com",
)


@pytest.mark.parametrize("name", GPU_RESOURCES)
@pytest.mark.parametrize("amounts", ["limits", "requests"])
def test_gpus_by_another_name_are_refused_in_every_container(
    tenants: Tenants, restricted: str, name: str, amounts: str
) -> None:
    asked: Json = {"resources": {amounts: {"cpu": 0.5, name: 1}}}
    places: tuple[Json, ...] = (
        {f"{WORKER}.resources": asked["resources"]},
        {
            f"{POD}.initContainers": [
                {"name": "side", "image": "i", "restartPolicy": "Always"} | asked
            ]
        },
    )
    for where in places:
        said = tenants.refusal(tenants.admin, restricted, "gpujobs", job_manifest(**where))
        assert f"{name} is not allowed: request GPUs in spec.gpusPerWorker and spec.gpu" in said


@pytest.mark.parametrize("name", ["cdi.k8s.io/all", "nvidia.cdi.k8s.io/a"])
def test_devices_by_annotation_are_refused(tenants: Tenants, restricted: str, name: str) -> None:
    devices: Json = {"template.metadata.annotations": {name: "nvidia.com/gpu=all"}}
    job = job_manifest(**devices)
    said = tenants.refusal(tenants.admin, restricted, "gpujobs", job)
    assert "those of cdi.k8s.io are not allowed: request GPUs in spec.gpusPerWorker" in said
    harmless: Json = {"template.metadata.annotations": {"example.com/a": "nvidia.com/gpu=all"}}
    assert tenants.refusal(tenants.admin, restricted, "gpujobs", job_manifest(**harmless)) == ""


def test_other_resources_are_let_in(tenants: Tenants, restricted: str) -> None:
    limits: Json = {"cpu": 0.5, "memory": "1Gi", "hugepages-2Mi": "2Mi", "rdma/hca": 1}
    asked: Json = {f"{WORKER}.resources": {"limits": limits, "requests": limits}}
    job = job_manifest(**asked)
    assert tenants.refusal(tenants.admin, restricted, "gpujobs", job) == ""


# -- whose pods are workers


def owned_by(kind: str = "GPUJob", version: str = "gpujob.dev/v1alpha1") -> list[Json]:
    owner = {"apiVersion": version, "kind": kind, "name": "job", "uid": "1", "controller": True}
    return [owner]


def worker_of(tenants: Tenants, namespace: str) -> Json:
    """The pod of a job that is there: the garbage collector removes others at once."""
    job = tenants.admin.create(collection(namespace, "gpujobs"), job_manifest())
    return rendered_pod(job, namespace)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"gpujob.dev/job-uid": "1"}}, "metadata.labels"),
        ({"annotations": {"gpujob.dev/gpus": "GPU-1a"}}, "metadata.annotations"),
        ({"ownerReferences": owned_by()}, "metadata.ownerReferences"),
    ],
)
def test_nobody_but_the_operator_makes_a_pod_that_looks_like_a_worker(
    tenants: Tenants, metadata: Json, field: str
) -> None:
    namespace = tenants.namespace()
    user = tenants.user(namespace, "user", JOBS_RULE, PODS_RULE)
    for client in (user, tenants.admin):
        said = tenants.refusal(client, namespace, "pods", pod_manifest("job-1-0", **metadata))
        assert said.startswith("403 Forbidden"), said
        assert field in said
    # The same on a pod that is there, and through its status.
    tenants.admin.create(collection(namespace, "pods"), pod_manifest("plain", labels={"a": "b"}))
    patch = {"metadata": {"name": "plain", **metadata}}
    assert field in tenants.refusal(user, namespace, "pods", patch, "PATCH")
    if "ownerReferences" not in metadata:
        # The API server itself leaves owners as they are here.
        with pytest.raises(ApiError, match=field):
            user.merge(f"{collection(namespace, 'pods')}/plain/status", {"metadata": metadata})
    harmless = {"metadata": {"name": "plain", "labels": {"a": "c"}}}
    assert tenants.refusal(user, namespace, "pods", harmless, "PATCH") == ""


def test_a_workers_marks_stay_as_the_operator_made_them(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    user = tenants.user(namespace, "user", JOBS_RULE, PODS_RULE)
    operator = tenants.user(NAMESPACE, OPERATOR, PODS_RULE, everywhere=True)
    worker = worker_of(tenants, namespace)
    path = f"{collection(namespace, 'pods')}/{worker['metadata']['name']}"
    operator.create(collection(namespace, "pods"), worker)
    for metadata, field in (
        ({"labels": {"gpujob.dev/job-uid": "another"}}, "metadata.labels"),
        ({"labels": {"gpujob.dev/job-uid": None}}, "metadata.labels"),
        ({"annotations": {"gpujob.dev/gpus": None}}, "metadata.annotations"),
    ):
        with pytest.raises(ApiError, match=field):
            user.merge(path, {"metadata": metadata})
    # A kubelet writes the status, and the garbage collector may orphan.
    user.merge(f"{path}/status", {"status": {"phase": "Running"}})
    user.merge(path, {"metadata": {"labels": {"team": "vision"}, "ownerReferences": None}})


# -- what the operator's token is good for


def test_the_operator_creates_and_deletes_nothing_but_pods_of_gpujobs(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    operator = tenants.user(NAMESPACE, OPERATOR, PODS_RULE, everywhere=True)
    field = "metadata.ownerReferences"
    assert field in tenants.refusal(operator, namespace, "pods", pod_manifest("bare"))
    for owners in (owned_by("Job", "batch/v1"), owned_by("GPUJob", "other.dev/v1")):
        pod = pod_manifest("foreign", ownerReferences=owners)
        assert field in tenants.refusal(operator, namespace, "pods", pod)
    tenants.admin.create(collection(namespace, "pods"), pod_manifest("theirs"))
    with pytest.raises(ApiError, match=field):
        operator.delete(f"{collection(namespace, 'pods')}/theirs")
    worker = worker_of(tenants, namespace)
    operator.create(collection(namespace, "pods"), worker)
    operator.delete(f"{collection(namespace, 'pods')}/{worker['metadata']['name']}")


def claim_manifest(name: str, **metadata: Any) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return head | {"metadata": {"name": name, **metadata}, "spec": spec}


def test_the_operator_creates_no_claim_but_of_gpujobs(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    operator = tenants.user(NAMESPACE, OPERATOR, PODS_RULE, CLAIMS_RULE, everywhere=True)
    for owners in ([], owned_by("Job", "batch/v1"), owned_by("GPUJob", "other.dev/v1")):
        claim = claim_manifest("foreign", ownerReferences=owners)
        said = tenants.refusal(operator, namespace, "persistentvolumeclaims", claim)
        assert "metadata.ownerReferences" in said
    job = tenants.admin.create(collection(namespace, "gpujobs"), job_manifest("train"))
    claim = default_claim(from_manifest(GPUJob, job), ClaimTemplate(ClaimSize(1024**3)))
    operator.create(collection(namespace, "persistentvolumeclaims"), claim)
    # Others make claims as before.
    theirs = claim_manifest("theirs")
    tenants.admin.create(collection(namespace, "persistentvolumeclaims"), theirs)


def service_manifest(name: str = "answers", **fields: Any) -> Json:
    """A GPUService with the template of `job_manifest`."""
    template = job_manifest(**fields)["spec"]["template"]
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUService", "metadata": {"name": name}}
    return head | {"spec": {"template": template}}


def test_who_may_not_create_pods_may_neither_create_nor_edit_a_service(tenants: Tenants) -> None:
    """Its template may be edited, so each edit is another pod."""
    namespace = tenants.namespace()
    editor = tenants.user(namespace, "editor", SERVICES_RULE)
    creator = tenants.user(namespace, "creator", SERVICES_RULE, PODS_RULE)
    said = tenants.refusal(editor, namespace, "gpuservices", service_manifest())
    assert "may not create pods in " in said
    assert "a GPUService makes pods there" in said
    creator.create(collection(namespace, "gpuservices"), service_manifest())
    edit = service_manifest(**{f"{WORKER}.image": "other"})
    assert "may not create pods in " in tenants.refusal(
        editor, namespace, "gpuservices", edit, "PATCH"
    )
    assert tenants.refusal(creator, namespace, "gpuservices", edit, "PATCH") == ""


@pytest.mark.parametrize(("fields", "named"), FORBIDDEN[:3] + FORBIDDEN[-1:])
def test_a_service_asks_for_nothing_that_restricted_forbids(
    tenants: Tenants, fields: Json, named: str
) -> None:
    namespace = tenants.namespace()
    said = tenants.refusal(tenants.admin, namespace, "gpuservices", service_manifest(**fields))
    assert named in said


def test_a_services_account_is_checked_with_its_author_and_not_with_the_operator(
    tenants: Tenants,
) -> None:
    namespace = tenants.namespace()
    creator = tenants.user(namespace, "creator", SERVICES_RULE, PODS_RULE)
    operator = tenants.user(NAMESPACE, OPERATOR, JOBS_RULE, PODS_RULE, everywhere=True)
    account = {f"{POD}.serviceAccountName": "deployer"}
    said = tenants.refusal(creator, namespace, "gpuservices", service_manifest(**account))
    assert "may not impersonate the service account deployer" in said
    replica = job_manifest("answers-0a1b2c-0", **account)
    replica["metadata"]["ownerReferences"] = owned_by("GPUService")
    assert tenants.refusal(operator, namespace, "gpujobs", replica) == ""
    # An owner that the user wrote is no excuse.
    author = tenants.user(namespace, "author", JOBS_RULE, PODS_RULE)
    assert "may not impersonate" in tenants.refusal(author, namespace, "gpujobs", replica)


def test_the_operator_creates_no_job_but_of_services(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    operator = tenants.user(NAMESPACE, OPERATOR, JOBS_RULE, PODS_RULE, everywhere=True)
    for owners in ([], owned_by("GPUJob"), owned_by("GPUService", "other.dev/v1")):
        job = job_manifest("foreign")
        job["metadata"]["ownerReferences"] = owners
        said = tenants.refusal(operator, namespace, "gpujobs", job)
        assert "metadata.ownerReferences" in said
    replica = job_manifest("answers-0a1b2c-0")
    replica["metadata"]["ownerReferences"] = owned_by("GPUService")
    operator.create(collection(namespace, "gpujobs"), replica)
    # A service's own pod is its gate.
    pod = pod_manifest("answers-gate-0", ownerReferences=owned_by("GPUService"))
    assert tenants.refusal(operator, namespace, "pods", pod) == ""


def front_manifest(name: str, owners: list[Json]) -> Json:
    metadata = {"name": name, "ownerReferences": owners}
    spec = {"ports": [{"port": 80}], "selector": {"app": "x"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def test_the_operator_changes_no_service_but_of_gpuservices(tenants: Tenants) -> None:
    namespace = tenants.namespace()
    operator = tenants.user(NAMESPACE, OPERATOR, PODS_RULE, FRONTS_RULE, everywhere=True)
    services = collection(namespace, "services")
    owners = [
        tenants.admin.create(collection(namespace, "gpujobs"), job_manifest()),
        tenants.admin.create(collection(namespace, "gpuservices"), service_manifest()),
    ]
    # The garbage collector removes what has an owner that is not there.
    of_job, of_service = (
        [owned_by(one["kind"])[0] | {key: one["metadata"][key] for key in ("name", "uid")}]
        for one in owners
    )
    for name, owner in (("theirs", []), ("gang", of_job)):
        stored = tenants.admin.create(services, front_manifest(name, owner))
        # An owner that the update itself brings is no claim.
        stored["metadata"]["ownerReferences"] = of_service
        with pytest.raises(ApiError, match=r"metadata\.ownerReferences"):
            operator.request("PUT", f"{services}/{name}", stored, "application/json")
    stored = tenants.admin.create(services, front_manifest("front", of_service))
    stored["spec"]["selector"] = {"app": "y"}
    changed = operator.request("PUT", f"{services}/front", stored, "application/json")
    assert changed["spec"]["selector"] == {"app": "y"}
    # Others change theirs as before.
    tenants.admin.merge(f"{services}/theirs", {"spec": {"selector": {"app": "z"}}})
