"""The statuses of the queues: what their jobs hold, how many wait, whether their parents count."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from gpujob_api.gpuqueue import GPUQueue, GPUQueueStatus
from gpujob_api.meta import MESSAGE_CHARACTERS_MAX, Condition, Conditions, ConditionStatus
from gpujob_operator.decide.model.conditions import ACCEPTED, find
from gpujob_operator.decide.model.plan import WriteQueueStatus
from gpujob_operator.decide.queue.pending import Pending
from gpujob_operator.decide.queue.quota import QueueUse, QuotaState


def queue_statuses(
    queues: tuple[GPUQueue, ...], state: QuotaState, waiting: Iterable[Pending], now: datetime
) -> list[WriteQueueStatus]:
    """Queue statuses that changed."""
    items: list[WriteQueueStatus] = []
    if not queues:
        return items
    counts = Counter(pending.job.spec.queue for pending in waiting)
    for queue in sorted(queues, key=lambda q: q.metadata.name):
        name = queue.metadata.name
        held = state.use.get(name, QueueUse())
        status = GPUQueueStatus(
            observed_generation=queue.metadata.generation,
            pending_jobs=counts.get(name, 0),
            running_jobs=held.jobs,
            reserved_gpus=held.gpus,
            reserved_memory_bytes=held.memory_bytes,
            conditions=_conditions(queue, state, now),
        )
        if status != queue.status:
            items.append(WriteQueueStatus(queue, status))
    return items


def _conditions(queue: GPUQueue, state: QuotaState, now: datetime) -> Conditions:
    """`Accepted` is there from the first time on that it is false."""
    before, problem = find(queue.status, ACCEPTED), state.tree.problems.get(queue.metadata.name)
    if before is None and problem is None:
        return queue.status.conditions
    valid, reason, message = ConditionStatus.TRUE, "Valid", "the parent counts"
    if problem is not None:
        valid, (reason, message) = ConditionStatus.FALSE, problem
    turned = before is None or before.status is not valid
    after = Condition(
        type=ACCEPTED,
        status=valid,
        reason=reason,
        message=message[:MESSAGE_CHARACTERS_MAX],
        last_transition_time=now if turned or before is None else before.last_transition_time,
        observed_generation=queue.metadata.generation,
    )
    others = [one for one in queue.status.conditions if one.type != ACCEPTED]
    return tuple(sorted([*others, after], key=lambda one: one.type))
