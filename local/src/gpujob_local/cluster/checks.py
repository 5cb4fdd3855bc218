"""Queries of the API server while a local cluster comes up."""

from gpujob_local.cluster.setup import SYSTEM_NAMESPACE
from gpujob_local.control_plane.api_client import ApiClient


def nodes_ready(client: ApiClient) -> int:
    """Returns how many nodes may get pods. A new node is tainted until it was seen ready."""
    nodes = client.get("/api/v1/nodes")["items"]
    return sum(not node["spec"].get("taints") for node in nodes)


def nodes_measured(client: ApiClient) -> int:
    """Returns how many nodes' cards were measured by their agents."""
    nodes = client.get("/apis/gpujob.dev/v1alpha1/gpunodes")["items"]
    return sum(bool(node.get("status", {}).get("observedAt")) for node in nodes)


def lease_holders(client: ApiClient) -> set[str]:
    """Returns the holders of the leases in our namespace."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
    return {lease["spec"].get("holderIdentity", "") for lease in client.get(path)["items"]}
