"""Shares of the cluster: quota, borrowing, and what a queue holds, for queues with one parent.

A queue may always have its nominal quota. Beyond it, it borrows what others leave idle, up to its
borrowing limit, and gives it back: jobs within their queue's nominal quota come first, and jobs of
a queue that borrows make room for them (see `room`). A parent's quota holds for it and its children
together.
"""

from collections.abc import Iterable

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.capacity.cluster import holds_cards
from gpujob_operator.decide.queue.quota import Queues


def queues_of(queues: Iterable[GPUQueue], jobs: Iterable[GPUJob]) -> Queues:
    found = Queues({queue.metadata.name: queue for queue in queues})
    for job in jobs:
        if holds_cards(job):
            found.add(job, job.status)
    return found
