"""GPUs that the pods of deleted jobs leave within their grace.

Nothing is placed there while these pods live (I1, I3). No job is stopped either for a job that fits
once they have left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpujob_operator.decide.capacity.availability import BlockedReason
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, NodeCapacity
from gpujob_operator.decide.model.grace import LATE_SECONDS
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import PodView


@dataclass(frozen=True, slots=True)
class LeavingPods:
    """The GPUs, the UIDs of the jobs, and the seconds until the last of the pods has to be gone."""

    gpus: frozenset[Place] = frozenset()
    jobs: frozenset[str] = frozenset()
    seconds: float = 0.0


def leaving_pods(pods: Iterable[PodView], now: datetime, grace_seconds_max: float) -> LeavingPods:
    """Returns those of these pods that are expected to end within their grace.

    A pod that outlives its grace, on a dead node for example, may never end. Nobody waits for a
    pod with a longer grace than jobs can have.
    """
    late = timedelta(seconds=LATE_SECONDS)
    longest = timedelta(seconds=grace_seconds_max)
    due = [
        (pod, pod.deletion_at + late)
        for pod in pods
        if pod.deletion_at is not None and not pod.finished and pod.node is not None
    ]
    leaving = [(pod, until) for pod, until in due if now < until <= now + longest + late]
    return LeavingPods(
        frozenset((pod.node or "", uuid) for pod, _ in leaving for uuid in pod.gpus),
        frozenset(pod.job_uid for pod, _ in leaving),
        max(((until - now).total_seconds() for _, until in leaving), default=0.0),
    )


def without_pods(capacity: Capacity, leaving: LeavingPods) -> Capacity:
    """Returns the capacity once these pods have left their GPUs, and another reading has arrived.

    What else uses these GPUs is not known before, nor how much CPU becomes free.
    """
    nodes: Mapping[str, NodeCapacity] = {
        name: _without(capacity.nodes[name], leaving)
        for name in {name for name, _ in leaving.gpus}
        if name in capacity.nodes
    }
    return replace(capacity, nodes={**capacity.nodes, **nodes})


def _without(node: NodeCapacity, leaving: LeavingPods) -> NodeCapacity:
    name = node.node.name
    gpus = (_left(gpu, leaving) if (name, gpu.uuid) in leaving.gpus else gpu for gpu in node.gpus)
    return replace(node, gpus=tuple(gpus))


def _left(gpu: GPUCapacity, leaving: LeavingPods) -> GPUCapacity:
    is_held = gpu.blocked is not None and gpu.blocked.reason is BlockedReason.STRAY_POD
    return replace(
        gpu,
        blocked=None if is_held else gpu.blocked,
        tenants=tuple(one for one in gpu.tenants if one.job_uid not in leaving.jobs),
        external_bytes=0 if is_held else gpu.external_bytes,
        terminating_bytes=0,
    )
