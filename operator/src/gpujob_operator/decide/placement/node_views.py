"""The packed nodes, and views that differ from them in some GPUs.

A view follows the main arrays by copying only rows that changed on either side.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, NodeCapacity
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.states import GPUState, NodeState


@dataclass(slots=True)
class PackedNodes:
    """Arrays of nodes with the scores that are cached for them."""

    arrays: NodeArrays
    score_cache: ScoreCache = field(default_factory=ScoreCache)


@dataclass(slots=True)
class DerivedView:
    """A view that follows the changes of the main arrays and has its own edits."""

    _packed: PackedNodes | None = None
    # The arrays that it follows, and the clocks of both when they last agreed.
    _main: NodeArrays | None = None
    _main_clock: int = 0
    _clock: int = 0

    def follow(self, main: PackedNodes) -> tuple[PackedNodes, list[int]]:
        """Copies the rows that changed on either side. Returns the view and those rows.

        Call `settle` after editing the rows, so that the next call keeps the edits.
        """
        arrays = main.arrays
        if self._packed is None or self._main is not arrays:
            self._packed = PackedNodes(arrays.copy())
            rows = np.arange(len(arrays.names))
        else:
            own = self._packed.arrays
            rows = np.flatnonzero(
                (arrays.changed_at_clock > self._main_clock) | (own.changed_at_clock > self._clock)
            )
            own.copy_rows(arrays, rows)
        self._main, self._main_clock = arrays, arrays.clock
        self.settle()
        return self._packed, rows.tolist()

    def settle(self) -> None:
        assert self._packed is not None, "called after `follow`"
        self._clock = self._packed.arrays.clock


@dataclass(slots=True)
class NodeViews:
    """The packed nodes in four views.

    They are all GPUs, without GPUs that have unmanaged processes, with nominated GPUs open, and
    with nominated GPUs open and without GPUs that have unmanaged processes.
    """

    main: PackedNodes
    no_external_use: DerivedView = field(default_factory=DerivedView)
    backfill: DerivedView = field(default_factory=DerivedView)
    # Follows `backfill`.
    exclusive_backfill: DerivedView = field(default_factory=DerivedView)
    # Changes if a row may stand for another node.
    order: int = 0

    @classmethod
    def of(cls, ordered: list[NodeCapacity]) -> "NodeViews":
        return cls(PackedNodes(NodeArrays.of([node_state(node, gpu_state) for node in ordered])))


def in_order(capacity: Capacity) -> list[NodeCapacity]:
    """Returns the nodes in row order. The first of equals wins.

    Nodes in use come before idle nodes, which can then stay idle. Small nodes come before large
    nodes that larger jobs may need.
    """
    return sorted(capacity.nodes.values(), key=_node_order)


def _node_order(node: NodeCapacity) -> tuple[bool, int, str]:
    return not any(gpu.tenants for gpu in node.gpus), len(node.gpus), node.node.name


def node_state(node: NodeCapacity, state_of: Callable[[GPUCapacity], GPUState]) -> NodeState:
    """Returns the row of a node. `state_of` is `gpu_state` or returns the same."""
    return NodeState(
        name=node.node.name,
        cpu_milli_free=node.cpu_milli_free,
        memory_bytes_free=node.memory_bytes_free,
        pods_free=node.pods_free,
        gpus=tuple(state_of(gpu) for gpu in sorted(node.gpus, key=_gpu_order)),
        spot=node.node.spot,
        price_per_gpu_hour=node.price_with_losses,
        eligible=not node.closed,
        interruptions_per_hour=node.interruptions_per_hour,
    )


def _gpu_order(gpu: GPUCapacity) -> tuple[bool, int]:
    """Puts GPUs in use first, fullest first.

    Idle GPUs keep their order, because sorting is stable.
    """
    return not gpu.tenants, gpu.free_bytes if gpu.tenants else 0


def gpu_state(gpu: GPUCapacity) -> GPUState:
    limits = [
        summed_utilization_limit_percent(t.max_slowdown_percent, gpu.law) for t in gpu.tenants
    ]
    return GPUState(
        uuid=gpu.uuid,
        model=gpu.model,
        memory_total_bytes=max(gpu.total_bytes - gpu.driver_bytes, 0),
        memory_free_bytes=gpu.free_bytes,
        utilization_used_percent=gpu.utilization_percent,
        utilization_limit_percent=min(limits, default=100.0),
        idle=not gpu.tenants,
        held_whole=gpu.held_whole,
        usable=not gpu.blocked,
        link_group=gpu.link_group,
        party=gpu.party,
    )
