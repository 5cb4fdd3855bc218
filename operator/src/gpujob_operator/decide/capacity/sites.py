"""The facts of nodes and GPUs that can affect a job running there, and nothing else."""

from collections.abc import Iterable
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob, Placement
from gpujob_operator.decide.capacity.availability import NodeClosed
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, NodeCapacity
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.notices import NodeNotice
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME


# Named tuples, because thousands are created and compared in every cycle.
class NodeFacts(NamedTuple):
    """The facts of a node that affect a job there, in addition to its own GPUs."""

    closed: NodeClosed | None
    not_ready_since: datetime | None
    notice: NodeNotice | None
    price_per_gpu_hour: float | None
    # The node's label, if it has one.
    hostname: str | None = None
    # How many GPUs its agent shows.
    gpus: int = 0


def facts_of(node: NodeCapacity) -> NodeFacts:
    since, hostname = node.node.not_ready_since, node.node.labels.get(LABEL_HOSTNAME)
    price, gpus = node.price_per_gpu_hour, len(node.gpus)
    return NodeFacts(node.closed, since, node.notice, price, hostname, gpus)


class WorkerSite(NamedTuple):
    """The node and GPUs of one worker.

    `facts` is None if the node is gone. GPUs that are gone are left out.
    """

    node: str
    facts: NodeFacts | None
    gpus: tuple[GPUCapacity, ...]

    def gpu(self, uuid: str) -> GPUCapacity | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


# By rank, in the order of the placement.
Sites = tuple[WorkerSite, ...]


def sites_of(placement: Placement | None, capacity: Capacity) -> Sites:
    """Returns the sites of the job's workers. Empty without a placement."""
    found: list[WorkerSite] = []
    for worker in placement.workers if placement is not None else ():
        node = capacity.nodes.get(worker.node)
        if node is None:
            found.append(WorkerSite(worker.node, None, ()))
            continue
        gpus = [gpu for gpu in node.gpus if gpu.uuid in worker.gpus]
        if len(worker.gpus) > 1:
            here = {gpu.uuid: gpu for gpu in gpus}
            gpus = [here[uuid] for uuid in worker.gpus if uuid in here]
        found.append(WorkerSite(worker.node, facts_of(node), tuple(gpus)))
    return tuple(found)


def is_same_place(one: Placement | None, other: Placement | None) -> bool:
    """Returns whether the workers of both are on the same nodes and GPUs. Pods are not compared."""
    if one is None or other is None:
        return one is other
    pairs = zip_longest(one.workers, other.workers)
    return all([a and b and (a.node, a.gpus) == (b.node, b.gpus) for a, b in pairs])


def facts_at(sites: Sites) -> list[NodeFacts | None]:
    return [site.facts for site in sites]


def has_all_gpus(job: GPUJob, sites: Iterable[WorkerSite]) -> bool:
    """Returns False if a GPU of the job is gone, or if its node's agent does not show it.

    The free memory of such a GPU is unknown.
    """
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    places = {(worker.node, uuid) for worker in workers for uuid in worker.gpus}
    return places == gpus_by_place(sites).keys()


def gpus_by_place(sites: Iterable[WorkerSite]) -> dict[Place, GPUCapacity]:
    return {(site.node, gpu.uuid): gpu for site in sites for gpu in site.gpus}


def gpus_at(sites: Iterable[WorkerSite]) -> list[GPUCapacity]:
    return [gpu for site in sites for gpu in site.gpus]
