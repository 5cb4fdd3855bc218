"""The sharing groups of queues (`spec.sharingGroup`), and the group of a job.

Jobs share a GPU with jobs of their own namespace and with jobs of their group.
"""

from collections.abc import Iterable, Mapping

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_operator.decide.model.held_gpus import queue_of


def sharing_groups(queues: Iterable[GPUQueue]) -> dict[str, str]:
    """Returns the group of each queue. A queue without a sharing group is its own group."""
    # Jobs may be in this queue even if no such object exists.
    groups = {DEFAULT_QUEUE: _alone(DEFAULT_QUEUE)}
    for queue in queues:
        name, group = queue.metadata.name, queue.spec.sharing_group
        groups[name] = _alone(name) if group is None else f"group {group}"
    return groups


def group_of(job: GPUJob, groups: Mapping[str, str]) -> str:
    """Returns the job's group. The queue of a running job may have been deleted."""
    queue = queue_of(job)
    return groups.get(queue, _alone(queue))


def may_share(job: GPUJob, other: GPUJob, groups: Mapping[str, str]) -> bool:
    """Returns whether the two jobs may run on one GPU."""
    same_namespace = job.metadata.namespace == other.metadata.namespace
    return same_namespace or group_of(job, groups) == group_of(other, groups)


def _alone(queue: str) -> str:
    return f"queue {queue}"
