"""Whether an autoscaler may add nodes that the cluster does not have yet."""

from gpujob_operator.decide.model.configuration import Configuration, NodeAutoscaler
from gpujob_operator.decide.placement.assumed import AssumedCapacity

# Karpenter puts one of these labels on every node that it adds.
KARPENTER_LABELS = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")


def nodes_may_come(assumed: AssumedCapacity, configuration: Configuration) -> bool:
    """Returns whether an autoscaler may add nodes, as configured or else by the labels of the
    nodes.
    """

    def find() -> bool:
        nodes = assumed.capacity.nodes.values()
        return any(label in node.node.labels for node in nodes for label in KARPENTER_LABELS)

    if configuration.node_autoscaler is not NodeAutoscaler.AUTO:
        return configuration.node_autoscaler is NodeAutoscaler.PRESENT
    return assumed.memo.once(("nodes may come",), find)
