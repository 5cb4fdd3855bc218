"""The request to packing and its answer."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from gpujob_operator.decide.packing.arrays import Booleans
from gpujob_operator.decide.packing.demand import Demand
from gpujob_operator.decide.packing.party import ANYBODY, Party
from gpujob_operator.decide.packing.states import WorkerAllocation


@dataclass(frozen=True, slots=True)
class NodeMask:
    """Nodes that a request may use, by row.

    The key identifies the constraint. Scores are cached by it, so a row must have changed if the
    constraint's answer for it has changed.
    """

    key: Hashable
    allowed: Booleans = field(compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One worker: its demand, and the nodes that it may use."""

    demand: Demand
    nodes: NodeMask | None = None
    prefers_spot: bool = False
    # The request joins a GPU with tenants only up to this sum of utilizations.
    utilization_limit_percent: float = 100.0
    party: Party = ANYBODY

    @property
    def allocation(self) -> WorkerAllocation:
        demand = self.demand
        return WorkerAllocation(
            cpu_milli=demand.cpu_milli,
            memory_bytes=demand.memory_bytes,
            gpu_memory_bytes=demand.gpu_memory_bytes,
            utilization_percent=100.0 if demand.exclusive else demand.utilization_percent,
            whole_gpu=demand.exclusive,
            party=self.party,
        )


@dataclass(frozen=True, slots=True)
class Score:
    """The cost of a placement, in GPUs, and its terms."""

    total: float
    worth: float
    usable: float
    stranded: float
    scarcity: float


@dataclass(frozen=True, slots=True)
class Selection:
    """A node's row and GPU columns. `candidates` is the number of nodes that could take the
    request.
    """

    row: int
    gpus: tuple[int, ...]
    score: Score
    candidates: int
