"""The product's own placement rule in the protocol's loop: the function itself, not a copy.

A GPU has a memory of 1,000 units and `gpu_milli` is what a pod asks of it; utilization stays 0. A
pod that asks for whole GPUs is an exclusive request. The mix is the requests of the whole pod
list, as FGD is given its typical pods; nothing is known of the order in which pods arrive.
"""

from collections.abc import Sequence

import numpy as np

from bench.openb.cluster import PODS_PER_NODE_MAX, Cluster
from bench.openb.trace import GPU_MILLI, Nodes, PodClass, Trace
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import GPUState, NodeState


def demand_of(pod: PodClass) -> Demand:
    return Demand(
        cpu_milli=pod.cpu_milli,
        memory_bytes=pod.memory_mib,
        gpus=pod.num_gpu,
        gpu_memory_bytes=pod.gpu_milli,
        exclusive=pod.num_gpu > 0 and pod.gpu_milli == GPU_MILLI,
        models=pod.models,
    )


def fleet_of(nodes: Nodes) -> NodeArrays:
    """Idle nodes; rows in tie-break order, as in `nodes`."""
    return NodeArrays.of(
        NodeState(
            name=name,
            cpu_milli_free=int(nodes.cpu_milli[row]),
            memory_bytes_free=int(nodes.memory_mib[row]),
            gpus=tuple(
                GPUState(f"{name}-{gpu}", nodes.models[row], GPU_MILLI, GPU_MILLI)
                for gpu in range(int(nodes.gpus[row]))
            ),
        )
        for row, name in enumerate(nodes.names)
    )


def mix_of(trace: Trace) -> WorkloadMix:
    counts: dict[Demand, float] = {}
    for number, count in enumerate(np.bincount(trace.of_pod).tolist()):
        demand = demand_of(trace.classes[number])
        counts[demand] = counts.get(demand, 0.0) + count
    return WorkloadMix.of(counts)


class Product:
    """A policy of the loop that asks `select.choose`."""

    def __init__(self, trace: Trace, nodes: Nodes) -> None:
        self._requests = [Request(demand_of(pod)) for pod in trace.classes]
        self._fleet = fleet_of(nodes)
        self._mix = mix_of(trace)
        self._ledger = ScoreCache()
        self._full: set[int] = set()

    def place(self, cluster: Cluster, class_number: int) -> tuple[int, Sequence[int]] | None:
        # Nothing ends in this protocol: what was refused once is refused for good.
        if class_number in self._full:
            return None
        request = self._requests[class_number]
        self._before_choosing()
        choice = choose(self._fleet, request, self._mix, self._ledger)
        if choice is None:
            self._full.add(class_number)
            return None
        assert cluster.pods[choice.row] < PODS_PER_NODE_MAX
        self._fleet.place(choice.row, choice.gpus, request.allocation)
        return choice.row, choice.gpus

    def _before_choosing(self) -> None:
        """What another order among ties changes."""


class RandomTies(Product):
    """The same rule, but among nodes that cost the same the one drawn by lot, not the first.

    The rule prefers the cheaper of two that cost the jobs to come the same; these traces have no
    prices, so that a price drawn anew for every choice decides ties and nothing else. What it shows
    is what the stable tie-break, which fills one node up before it opens the next, is worth.
    """

    def __init__(self, trace: Trace, nodes: Nodes, seed: int) -> None:
        super().__init__(trace, nodes)
        self._random = np.random.default_rng(seed)

    def _before_choosing(self) -> None:
        self._fleet.price = self._random.random(len(self._fleet.names))
