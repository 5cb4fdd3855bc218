"""The statuses of the queues: what their jobs hold, and how many wait."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpujob_api.gpuqueue import GPUQueue, GPUQueueStatus
from gpujob_operator.decide.model.plan import WriteQueueStatus
from gpujob_operator.decide.queue.pending import Pending
from gpujob_operator.decide.queue.quota import QueueUse


def queue_statuses(
    queues: tuple[GPUQueue, ...], use: Mapping[str, QueueUse], waiting: Iterable[Pending]
) -> list[WriteQueueStatus]:
    """Queue statuses that changed."""
    items: list[WriteQueueStatus] = []
    if not queues:
        return items
    counts = Counter(pending.job.spec.queue for pending in waiting)
    for queue in sorted(queues, key=lambda q: q.metadata.name):
        name = queue.metadata.name
        held = use.get(name, QueueUse())
        status = GPUQueueStatus(
            observed_generation=queue.metadata.generation,
            pending_jobs=counts.get(name, 0),
            running_jobs=held.jobs,
            reserved_gpus=held.gpus,
            reserved_memory_bytes=held.memory_bytes,
            conditions=queue.status.conditions,
        )
        if status != queue.status:
            items.append(WriteQueueStatus(queue, status))
    return items
