"""Who is next: order, quota, and what an earlier job keeps free for itself (I11).

Order is priority, then arrival, then UID. A later job may overtake one that does not fit
(backfill), until that one has waited `claimAfterSeconds`; from then on it claims the cards on which
it would fit soonest, and nobody later is placed there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity import Capacity, Card, holds_cards
from gpujob_operator.decide.needs import Needs, node_refusal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class QueueUse:
    """What the running jobs of a queue hold."""

    jobs: int = 0
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Queues:
    """Quota of all queues, kept up to date while this cycle places jobs."""

    by_name: Mapping[str, GPUQueue]
    use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])

    def add(self, job: GPUJob, status: GPUJobStatus) -> None:
        use = self.use.setdefault(job.spec.queue, QueueUse())
        if status.placement is None or status.reservation is None:
            return
        cards = sum(len(worker.gpus) for worker in status.placement.workers)
        use.jobs += 1
        use.gpus += cards
        use.memory_bytes += cards * status.reservation.memory_bytes

    def missing(self, job: GPUJob) -> str:
        """Why the job's queue does not exist, or ""."""
        name = job.spec.queue
        if name in self.by_name or name == DEFAULT_QUEUE:
            return ""
        known = ", ".join(sorted({*self.by_name, DEFAULT_QUEUE})[:10])
        return f"spec.queue: no GPUQueue {name!r}; there are: {known}"

    def over(self, job: GPUJob, memory_bytes: int) -> str:
        """Why this job would exceed its queue's quota, or "". `memory_bytes` is per card."""
        queue = self.by_name.get(job.spec.queue)
        if queue is None:
            return ""
        use = self.use.get(job.spec.queue, QueueUse())
        cards = job.spec.workers * job.spec.gpus_per_worker
        nominal, extra = queue.spec.nominal, queue.spec.borrowing_limit
        if nominal.gpus is not None:
            limit = nominal.gpus + (extra.gpus or 0)
            if use.gpus + cards > limit:
                return f"queue {job.spec.queue} holds {use.gpus} of {limit} cards, needs {cards}"
        if nominal.gpu_memory is not None:
            limit = nominal.gpu_memory.bytes + (extra.gpu_memory.bytes if extra.gpu_memory else 0)
            wanted = use.memory_bytes + cards * memory_bytes
            if wanted > limit:
                return (
                    f"queue {job.spec.queue} would hold {format_memory(wanted)} "
                    f"of {format_memory(limit)} GPU memory"
                )
        return ""


def queues_of(queues: Iterable[GPUQueue], jobs: Iterable[GPUJob]) -> Queues:
    found = Queues({queue.metadata.name: queue for queue in queues})
    for job in jobs:
        if holds_cards(job):
            found.add(job, job.status)
    return found


def order_key(job: GPUJob) -> tuple[int, datetime, str]:
    created = job.metadata.creation_timestamp or _EPOCH
    return -job.spec.priority, created, job.metadata.uid


def claim(needs: Needs, capacity: Capacity) -> frozenset[str]:
    """The cards that a waiting job keeps free: those with the fewest tenants, then most memory.

    Only nodes and cards that the job could use at all; empty when there are not enough of them.
    """
    count = needs.job.spec.workers * needs.job.spec.gpus_per_worker
    wanted = needs.job.spec.gpu.models
    cards: list[tuple[tuple[object, ...], str]] = []
    for node in capacity.nodes.values():
        if node.closed or node_refusal(needs, node.node):
            continue
        cards += [
            (_soonest(card), card.uuid)
            for card in node.cards
            if not card.blocked and (not wanted or card.model in wanted)
        ]
    chosen = sorted(cards)[:count]
    return frozenset(uuid for _, uuid in chosen) if len(chosen) == count else frozenset()


def _soonest(card: Card) -> tuple[object, ...]:
    return len(card.tenants), -card.free_bytes, card.uuid
