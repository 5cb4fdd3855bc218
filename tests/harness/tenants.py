"""Users with few rights in a control plane where the chart's admission policies hold."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_api.settings import Settings
from gpujob_local.control_plane.api_client import ApiClient, ApiError, Json
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.pod import worker_pod
from tests.harness.chart import NAMESPACE, of_kind, render
from tests.harness.cluster import RunningControlPlane
from tests.harness.jobs import job_manifest

OPERATOR = "gpujob-operator"
KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
PLACEMENT = {"workers": [{"rank": 0, "node": "node-a", "gpus": ["GPU-1a"]}]}
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_EVERY_VERB = ["get", "list", "create", "update", "patch", "delete"]
JOBS_RULE = {"apiGroups": ["gpujob.dev"], "resources": ["gpujobs"], "verbs": _EVERY_VERB}
SERVICES_RULE = {"apiGroups": ["gpujob.dev"], "resources": ["gpuservices"], "verbs": _EVERY_VERB}
PODS_RULE = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": _EVERY_VERB}
FRONTS_RULE = {"apiGroups": [""], "resources": ["services"], "verbs": _EVERY_VERB}
CLAIMS_RULE = {
    "apiGroups": [""],
    "resources": ["persistentvolumeclaims"],
    "verbs": ["get", "create"],
}


def may_impersonate(account: str) -> Json:
    rule = {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}
    return rule | {"resourceNames": [account]}


class Tenants:
    """Namespaces, and clients of users in them. `admin` may do everything that RBAC grants."""

    def __init__(self, running: RunningControlPlane) -> None:
        self.running = running
        self.admin = running.client()

    @classmethod
    def with_policies(
        cls, running: RunningControlPlane, values: Mapping[str, Any] | None = None
    ) -> "Tenants":
        """Applies the policies of the chart with these values, and waits until they hold."""
        tenants = cls(running)
        tenants.namespace(NAMESPACE)
        for found in of_kind(render(values), *KINDS):
            path = f"/apis/admissionregistration.k8s.io/v1/{KINDS[found['kind']]}"
            tenants.admin.apply(f"{path}/{found['metadata']['name']}", found)
        where = tenants.namespace()
        operator = tenants.user(NAMESPACE, OPERATOR, PODS_RULE, everywhere=True)
        editor = tenants.user(where, "editor", JOBS_RULE)
        creator = tenants.user(where, "creator", JOBS_RULE, PODS_RULE)
        account = {"template.spec.serviceAccountName": "deployer"}
        probes = [
            *((tenants.admin, "gpujobs", job) for job in _forbidden_jobs()),
            (tenants.admin, "pods", pod_manifest("labelled", labels={"gpujob.dev/job": "x"})),
            (operator, "pods", pod_manifest("bare")),
            (editor, "gpujobs", job_manifest("no-pods")),
            (creator, "gpujobs", job_manifest("account", **account)),
        ]
        for client, plural, probe in probes:
            running.control_plane.wait_until(
                lambda c=client, p=plural, b=probe: bool(tenants.refusal(c, where, p, b)),
                f"the policy about {plural} such as {probe['metadata']['name']}",
            )
        return tenants

    def namespace(self, name: str = "", **labels: str) -> str:
        """A namespace, of its own without a name, that has its default service account."""
        name = name or f"team-{secrets.token_hex(4)}"
        named = {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()}
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": named},
        }
        self.admin.apply(f"/api/v1/namespaces/{name}", body)
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        self.running.control_plane.wait_until(
            lambda: bool(self.admin.get(accounts)["items"]), f"the default account of {name}"
        )
        return name

    def user(self, namespace: str, name: str, *rules: Json, everywhere: bool = False) -> ApiClient:
        """A client with these rights in the namespace, or everywhere, and no others."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        self.admin.apply(f"{accounts}/{name}", account)
        prefix = "Cluster" if everywhere else ""
        folder = _RBAC if everywhere else f"{_RBAC}/namespaces/{namespace}"
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        role = head | {"kind": f"{prefix}Role", "rules": list(rules)}
        self.admin.apply(f"{folder}/{prefix.lower()}roles/{name}", role)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        binding = head | {
            "kind": f"{prefix}RoleBinding",
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": f"{prefix}Role",
                "name": name,
            },
            "subjects": [subject],
        }
        self.admin.apply(f"{folder}/{prefix.lower()}rolebindings/{name}", binding)
        token = self.admin.create(f"{accounts}/{name}/token", {"spec": {}})["status"]["token"]
        identity = self.running.control_plane.identity("admin")
        client = ApiClient(replace(identity, certificate=None, key=None, token=token))
        resource = "pods" if everywhere else str(rules[0]["resources"][0])
        # Rights are known to the API server a moment after they are given.
        self.running.control_plane.wait_until(
            lambda: _may_read(client, namespace, resource), f"the rights of {name}"
        )
        return client

    def refusal(
        self, client: ApiClient, namespace: str, plural: str, body: Json, method: str = "POST"
    ) -> str:
        """What the API server says against this object, or ""; nothing is stored."""
        folder = collection(namespace, plural)
        content = "application/json"
        if method == "PATCH":
            folder, content = f"{folder}/{body['metadata']['name']}", "application/merge-patch+json"
        try:
            client.request(method, f"{folder}?dryRun=All", body, content)
        except ApiError as error:
            return str(error)
        return ""


def _may_read(client: ApiClient, namespace: str, plural: str) -> bool:
    try:
        client.get(collection(namespace, plural))
    except ApiError:
        return False
    return True


def collection(namespace: str, plural: str) -> str:
    core = plural in ("pods", "services", "persistentvolumeclaims")
    group = "/api/v1" if core else "/apis/gpujob.dev/v1alpha1"
    return f"{group}/namespaces/{namespace}/{plural}"


def _forbidden_jobs() -> list[Json]:
    """A job that each policy on templates refuses to everybody."""
    volume = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
    return [
        job_manifest("host-path", **{"template.spec.volumes": [{"name": "v", "hostPath": {}}]}),
        job_manifest("token", **{"template.spec.volumes": [volume]}),
        job_manifest("class", **{"template.spec.priorityClassName": "system-node-critical"}),
    ]


def pod_manifest(name: str, **metadata: Any) -> Json:
    spec = {"containers": [{"name": "worker", "image": "trainer"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def rendered_pod(manifest: Json, namespace: str) -> Json:
    """The pod that the operator makes of this job."""
    metadata = {"uid": "0000-1111", **manifest["metadata"], "namespace": namespace}
    status = {"phase": "Starting", "attempt": 1, "placement": PLACEMENT}
    job = from_manifest(GPUJob, {**manifest, "metadata": metadata, "status": status})
    return worker_pod(CreatePod(job, 0, Settings()), Configuration(report_url="http://reports"))
