"""What the API server says of a local cluster that comes up."""

from gpujob_local.cluster.setup import SYSTEM_NAMESPACE
from gpujob_local.control_plane.api_client import ApiClient


def nodes_ready(client: ApiClient) -> int:
    """How many nodes may get pods: a new one is tainted until it was seen ready."""
    nodes = client.get("/api/v1/nodes")["items"]
    return sum(not node["spec"].get("taints") for node in nodes)


def nodes_measured(client: ApiClient) -> int:
    """How many nodes' cards were measured by their agents."""
    nodes = client.get("/apis/gpujob.dev/v1alpha1/gpunodes")["items"]
    return sum(bool(node.get("status", {}).get("observedAt")) for node in nodes)


def lease_holders(client: ApiClient) -> set[str]:
    """Who leads in our namespace."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
    return {lease["spec"].get("holderIdentity", "") for lease in client.get(path)["items"]}
