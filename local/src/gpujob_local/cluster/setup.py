"""Creates the objects that a local cluster needs before its parts start: CRDs, namespace,
rights.
"""

from pathlib import Path

import yaml

from gpujob_local.cluster.admission import install_policies
from gpujob_local.control_plane.api_client import ApiClient, Json
from gpujob_local.control_plane.manifests import REPOSITORY, install_crds
from gpujob_local.kubelet.storage import STORAGE_CLASS, STORAGE_CLASS_OBJECT

SYSTEM_NAMESPACE = "gpujob-system"
STORAGE_USER = "gpujob-local-storage"
OPERATOR_ACCOUNT = "gpujob-operator"
AGENT_ACCOUNT = "gpujob-agent"
TOKEN_SECONDS = 24 * 3600
# A cluster's DNS reads these objects. Here the process nodes do.
NAMES_ROLE = "gpujob-local-names"
NAMES_RULES = [
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]
# The chart includes the same files.
RULES_FOLDER = REPOSITORY / "charts" / "gpujob" / "files"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def install_objects(client: ApiClient, *, policies: bool) -> None:
    """Applies all objects, and may be repeated. With `policies`, that includes the chart's
    admission policies.
    """
    install_crds(client)
    client.apply(
        f"/api/v1/namespaces/{SYSTEM_NAMESPACE}", _head("v1", "Namespace", SYSTEM_NAMESPACE)
    )
    client.apply(f"/apis/storage.k8s.io/v1/storageclasses/{STORAGE_CLASS}", STORAGE_CLASS_OBJECT)
    _bind(
        client, STORAGE_USER, "system:persistent-volume-provisioner", _subject("User", STORAGE_USER)
    )
    _apply_role(client, NAMES_ROLE, NAMES_RULES)
    _bind(client, NAMES_ROLE, NAMES_ROLE, _subject("Group", "system:nodes"))
    _grant_account(client, OPERATOR_ACCOUNT, RULES_FOLDER / "operator-rules.yaml")
    _grant_account(client, AGENT_ACCOUNT, RULES_FOLDER / "agent-rules.yaml")
    if policies:
        install_policies(client, f"system:serviceaccount:{SYSTEM_NAMESPACE}:{OPERATOR_ACCOUNT}")


def account_token(client: ApiClient, account: str) -> str:
    """Returns a token of one of our service accounts, as a pod would have it."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{account}/token"
    answer = client.create(path, {"spec": {"expirationSeconds": TOKEN_SECONDS}})
    return answer["status"]["token"]


def _grant_account(client: ApiClient, name: str, rules_file: Path) -> None:
    rules = yaml.safe_load(rules_file.read_bytes())
    accounts = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts"
    client.apply(f"{accounts}/{name}", _head("v1", "ServiceAccount", name))
    _apply_role(client, name, rules)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    _bind(client, name, name, subject)


def _apply_role(client: ApiClient, name: str, rules: list[Json]) -> None:
    role = _head("rbac.authorization.k8s.io/v1", "ClusterRole", name) | {"rules": rules}
    client.apply(f"{_RBAC}/clusterroles/{name}", role)


def _subject(kind: str, name: str) -> Json:
    return {"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"}


def _bind(client: ApiClient, name: str, role: str, subject: Json) -> None:
    binding = _head("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name) | {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
    client.apply(f"{_RBAC}/clusterrolebindings/{name}", binding)


def _head(version: str, kind: str, name: str) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
