"""One table of the labels by which clouds and autoscalers mark spot nodes."""

from collections.abc import Mapping

from gpujob_api.meta import LABEL_SPOT

# The values that mean spot, by key. None if the key alone does. docs/reference/nodes.md has the
# table for users, and docs/design/0019-signs-of-a-node-that-goes.md the sources.
SPOT_LABELS: Mapping[str, frozenset[str] | None] = {
    LABEL_SPOT: frozenset({"true"}),
    # Karpenter with every provider, and EKS Auto Mode.
    "karpenter.sh/capacity-type": frozenset({"spot"}),
    # EKS managed node groups.
    "eks.amazonaws.com/capacityType": frozenset({"SPOT"}),
    # A convention for nodes that people start themselves on AWS.
    "node.kubernetes.io/lifecycle": frozenset({"spot"}),
    # GKE. A preemptible machine is reclaimed in the same way.
    "cloud.google.com/gke-spot": frozenset({"true"}),
    "cloud.google.com/gke-preemptible": frozenset({"true"}),
    "cloud.google.com/gke-provisioning": frozenset({"spot", "preemptible"}),
    # Karpenter's provider for Google Cloud writes the key without a prefix.
    "gke-provisioning": frozenset({"spot", "preemptible"}),
    # AKS.
    "kubernetes.azure.com/scalesetpriority": frozenset({"spot"}),
    "kubernetes.azure.com/priority": frozenset({"spot"}),
    # OpenShift.
    "machine.openshift.io/interruptible-instance": None,
    # Oracle Cloud.
    "oci.oraclecloud.com/oke-is-preemptible": frozenset({"true"}),
}


def is_spot(labels: Mapping[str, str]) -> bool:
    """Returns whether the labels mark a spot node. The operator's own label wins, even with
    "false".
    """
    own = labels.get(LABEL_SPOT)
    if own is not None:
        return own == "true"
    return any(
        key in labels and (values is None or labels[key] in values)
        for key, values in SPOT_LABELS.items()
    )
