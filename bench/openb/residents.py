"""Who runs where, for queues that move pods: cluster of the protocol and fleet of the product.

The cluster checks every move (nothing may go below zero); the fleet is what `select.choose`
looks at.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.openb.cluster import PODS_PER_NODE_MAX, Cluster
from bench.openb.product import demand_of, fleet_of, mix_of
from bench.openb.trace import GPU_MILLI, GPUS_PER_NODE_MAX, Nodes, PodClass, Trace
from gpujob_operator.decide.packing.request import Request, Selection
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import GPUState, NodeState


class Pod(NamedTuple):
    """A pod of the list, by its number in order of arrival, and what it asks for."""

    number: int
    class_number: int


@dataclass(frozen=True, slots=True)
class Place:
    row: int
    gpus: tuple[int, ...]


class Residents:
    """Pods by node. Every change goes through `put` and `remove`."""

    def __init__(self, trace: Trace, nodes: Nodes) -> None:
        self.classes = trace.classes
        self.nodes = nodes
        self.cluster = Cluster.empty(nodes)
        self.on: list[dict[Pod, tuple[int, ...]]] = [{} for _ in nodes.names]
        self.used_milli = 0
        self.present = np.arange(GPUS_PER_NODE_MAX) < nodes.gpus[:, None]
        self._fleet = fleet_of(nodes)
        self._requests = [Request(demand_of(pod)) for pod in trace.classes]
        self._mix = mix_of(trace)
        self._ledger = ScoreCache()
        self._allowed: dict[PodClass, NDArray[np.bool_]] = {}
        self._rows = np.arange(len(nodes.names))

    def asks(self, pod: Pod) -> PodClass:
        return self.classes[pod.class_number]

    def allowed(self, asked: PodClass) -> NDArray[np.bool_]:
        """Rows whose GPUs are of a model that will do, and that could take it were they empty."""
        known = self._allowed.get(asked)
        if known is None:
            known = self._allowed[asked] = self._could_ever(asked)
        return known

    def _could_ever(self, asked: PodClass) -> NDArray[np.bool_]:
        of_model = [not asked.models or model in asked.models for model in self.nodes.models]
        return (
            np.array(of_model, dtype=np.bool_)
            & (self.nodes.gpus >= asked.num_gpu)
            & (self.nodes.cpu_milli >= asked.cpu_milli)
            & (self.nodes.memory_mib >= asked.memory_mib)
        )

    def find(self, class_number: int) -> Place | None:
        """Where the product's rule puts it, or None where it fits nowhere."""
        if not len(self.rows_for(class_number)):
            return None
        found = choose(self._fleet, self._requests[class_number], self._mix, self._ledger)
        assert isinstance(found, Selection), "it fits somewhere"
        return Place(found.row, found.gpus)

    def rows_for(self, class_number: int) -> NDArray[np.int64]:
        """Rows that could take it now: the rule refuses exactly where there are none, and says why,
        which takes longer and nobody reads here."""
        asked = self.classes[class_number]
        return np.flatnonzero(self.allowed(asked) & self.cluster.fits(self._rows, asked))

    def put(self, pod: Pod, place: Place) -> None:
        assert self.cluster.pods[place.row] < PODS_PER_NODE_MAX
        self.cluster.take(place.row, place.gpus, self.asks(pod))
        self._fleet.place(place.row, place.gpus, self._requests[pod.class_number].allocation)
        self.on[place.row][pod] = place.gpus
        self.used_milli += self.asks(pod).demand_milli

    def remove(self, pod: Pod, row: int) -> Place:
        """Takes a pod off its node; where it was."""
        gpus = self.on[row].pop(pod)
        self.cluster.give(row, gpus, self.asks(pod))
        self._fleet.renew(row, self._state(row))
        self.used_milli -= self.asks(pod).demand_milli
        return Place(row, gpus)

    def free_milli(self) -> NDArray[np.int64]:
        """By row and GPU; far below zero where there is no GPU."""
        return np.where(self.present, self.cluster.gpu_free, -(10**9))

    def _state(self, row: int) -> NodeState:
        """The node as the product's rule sees it."""
        name, cluster = self.nodes.names[row], self.cluster
        held = {gpu for gpus in self.on[row].values() for gpu in gpus}
        whole = {
            gpu
            for pod, gpus in self.on[row].items()
            for gpu in gpus
            if self.asks(pod).gpu_milli == GPU_MILLI
        }
        return NodeState(
            name=name,
            cpu_milli_free=int(cluster.cpu_free[row]),
            memory_bytes_free=int(cluster.memory_free[row]),
            gpus=tuple(
                GPUState(
                    uuid=f"{name}-{gpu}",
                    model=self.nodes.models[row],
                    memory_total_bytes=GPU_MILLI,
                    memory_free_bytes=int(cluster.gpu_free[row, gpu]),
                    idle=gpu not in held,
                    held_whole=gpu in whole,
                )
                for gpu in range(int(self.nodes.gpus[row]))
            ),
        )
