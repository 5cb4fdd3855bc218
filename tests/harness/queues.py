"""Queues and their order as a whole, as tests ask for them."""

from collections.abc import Iterable

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.queue.order import OrderEntry, OrderRules, order_key
from gpujob_operator.decide.queue.quota import QuotaState


def queues_of(queues: Iterable[GPUQueue], jobs: Iterable[GPUJob]) -> QuotaState:
    found = QuotaState({queue.metadata.name: queue for queue in queues})
    for job in jobs:
        if holds_gpus(job):
            found.add(job, job.status)
    return found


def order(contenders: Iterable[OrderEntry], now_seconds: float, rules: OrderRules) -> list[str]:
    """UIDs, who is served first comes first. The same for any order of the input."""
    keyed = sorted(order_key(contender, now_seconds, rules) for contender in contenders)
    return [key[-1] for key in keyed]
