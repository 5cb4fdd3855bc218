"""The capacity once the pods of deleted jobs have left their GPUs."""

from dataclasses import replace

from gpujob_operator.decide.capacity.availability import BlockedReason
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, NodeCapacity
from gpujob_operator.decide.capacity.leaving import LeavingPods
from gpujob_operator.decide.placement.gpu_filter import after_departures


def after_deletions(capacity: Capacity, leaving: LeavingPods) -> Capacity:
    """Returns the capacity without these pods, after another reading.

    Other use of their GPUs is unknown until then, and counts as none. The CPU that they leave is
    unknown too, and is not counted.
    """
    names = {name for name, _ in leaving.seconds}
    nodes = {
        name: _without(node, leaving) if name in names else node
        for name, node in capacity.nodes.items()
    }
    return replace(capacity, nodes=nodes)


def _without(node: NodeCapacity, leaving: LeavingPods) -> NodeCapacity:
    name = node.node.name
    gpus = [
        _left(gpu, leaving) if (name, gpu.uuid) in leaving.seconds else gpu for gpu in node.gpus
    ]
    return replace(node, gpus=tuple(gpus))


def _left(gpu: GPUCapacity, leaving: LeavingPods) -> GPUCapacity:
    left = after_departures(gpu, leaving.jobs)
    if left.blocked is None or left.blocked.reason is not BlockedReason.STRAY_POD:
        return left
    return replace(left, blocked=None, external_bytes=0)
