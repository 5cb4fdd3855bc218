"""Who is next: order, quota, and what an earlier job keeps free for itself (I11).

Order is that of `order`: priority, overdue waiting, fair share of the queues, arrival. A later job
may overtake one that does not fit (backfill), until that one has waited `claimAfterSeconds`; from
then on it claims the cards on which it would fit soonest, and nobody later is placed there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity import Capacity, Card, FleetSize, NodeCapacity, holds_cards
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.estimate import remaining_seconds
from gpujob_operator.decide.needs import Needs, node_refusal
from gpujob_operator.decide.order import Contender


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
    # Queues whose quota is kept for a job that has waited for long.
    kept: set[str] = field(default_factory=set[str])

    def add(self, job: GPUJob, status: GPUJobStatus) -> None:
        use = self.use.setdefault(job.spec.queue, QueueUse())
        if status.placement is None or status.reservation is None:
            return
        cards = sum(len(worker.gpus) for worker in status.placement.workers)
        use.jobs += 1
        use.gpus += cards
        use.memory_bytes += cards * status.reservation.memory_bytes

    def share(self, name: str, fleet: FleetSize) -> float:
        """The queue's dominant share of cards and GPU memory, divided by its weight."""
        use = self.use.get(name, QueueUse())
        queue = self.by_name.get(name)
        weight = queue.spec.weight if queue is not None else 1
        shares = (use.gpus / max(fleet.cards, 1), use.memory_bytes / max(fleet.memory_bytes, 1))
        return max(shares) / weight

    def missing(self, job: GPUJob) -> str:
        """Why the job's queue does not exist, or ""."""
        name = job.spec.queue
        if name in self.by_name or name == DEFAULT_QUEUE:
            return ""
        known = ", ".join(sorted({*self.by_name, DEFAULT_QUEUE})[:10])
        return f"spec.queue: no GPUQueue {name!r}; there are: {known}"

    def over(self, job: GPUJob, memory_bytes: int) -> str:
        """Why this job would exceed its queue's quota, or "". `memory_bytes` is per card."""
        if job.spec.queue in self.kept:
            return f"the quota of queue {job.spec.queue} is kept for an earlier job"
        return self._over(job, memory_bytes, self.use.get(job.spec.queue, QueueUse()))

    def keep(self, job: GPUJob, memory_bytes: int) -> None:
        """Lets no later job of the queue overtake this one, if it can ever be within the quota."""
        if not self._over(job, memory_bytes, QueueUse()):
            self.kept.add(job.spec.queue)

    def _over(self, job: GPUJob, memory_bytes: int, use: QueueUse) -> str:
        queue = self.by_name.get(job.spec.queue)
        if queue is None:
            return ""
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


def contender(job: GPUJob, queues: Queues, fleet: FleetSize, now: datetime) -> Contender:
    """The job as `order` sees it. Times are seconds since 1970."""
    status = job.status
    created = job.metadata.creation_timestamp or now
    measured = status.measurement
    pace = measured.current.step_seconds if measured is not None and measured.current else 0.0
    steps = (measured.step, measured.steps_total) if measured is not None else (0, None)
    return Contender(
        uid=job.metadata.uid,
        arrived_seconds=created.timestamp(),
        gpus=job.spec.workers * job.spec.gpus_per_worker,
        priority=job.spec.priority,
        queue_share=queues.share(job.spec.queue, fleet),
        remaining_seconds=remaining_seconds(*steps, pace),
    )


def claim(needs: Needs, capacity: Capacity, configuration: Configuration) -> frozenset[str]:
    """The cards that a waiting job keeps free: those on which it would fit soonest.

    Enough of one model for all workers, each worker's on one node, as they are placed; empty when
    the job would not even fit were all our jobs gone.
    """
    models = {card.model for node in capacity.nodes.values() for card in node.cards}
    wanted = set(needs.job.spec.gpu.models) or models
    claims = [_claim_on(needs, model, capacity, configuration) for model in models & wanted]
    best = min((one for one in claims if one is not None), default=None)
    return frozenset(best[1]) if best is not None else frozenset()


_Soon = tuple[int, int, str]
_Claim = tuple[_Soon, tuple[str, ...]]


def _claim_on(
    needs: Needs, model: str, capacity: Capacity, configuration: Configuration
) -> _Claim | None:
    """The soonest cards of one model, with how soon; None if there are not enough."""
    wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
    least_bytes = needs.least_bytes(model, wanted)
    places: list[_Claim] = []
    for node in capacity.nodes.values():
        if not node.closed and not node_refusal(needs, node.node):
            places += _places(needs, node, model, least_bytes)
    chosen = sorted(places)[: needs.job.spec.workers]
    if len(chosen) < needs.job.spec.workers:
        return None
    return max(soon for soon, _ in chosen), tuple(uuid for _, uuids in chosen for uuid in uuids)


def _places(needs: Needs, node: NodeCapacity, model: str, least_bytes: int) -> list[_Claim]:
    """For each worker that the node could take, emptied of our jobs: its cards and how soon."""
    usable = sorted(
        (_soonest(card), card.uuid)
        for card in node.cards
        if card.model == model and not card.blocked and card.room_bytes >= least_bytes
    )
    count = needs.job.spec.gpus_per_worker
    groups = [usable[n : n + count] for n in range(0, len(usable) - count + 1, count)]
    return [(max(group)[0], tuple(uuid for _, uuid in group)) for group in groups]


def _soonest(card: Card) -> _Soon:
    return len(card.tenants), -card.free_bytes, card.uuid
