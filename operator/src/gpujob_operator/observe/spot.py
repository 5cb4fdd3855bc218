"""Watches spot nodes come and go: how long each pool was there, how often a node was taken away.

Taken away is a node that gets a reclaim notice, or that vanishes while it was open to new pods.
Whoever scales a cluster down cordons or taints a node first: that is no interruption. Kept by this
process: after a restart the count begins anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.decide.snapshot import NodeView, SpotPool
from gpujob_operator.decide.spot import pool_of

# Pools beyond this are not counted; a cluster has a handful.
POOLS_MAX = 256
# What autoscalers put on a node that they are about to remove. Karpenter marks reclaimed nodes the
# same way where it handles the notice itself: those are not counted.
_SCALED_DOWN = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")


@dataclass(slots=True)
class _Watched:
    """One node that is there."""

    pool: str
    since: datetime
    # Whether new pods could come, when it was last seen.
    open: bool = True


@dataclass(slots=True)
class _Pool:
    seconds: float = 0.0
    interruptions: int = 0
    # Nodes that are there, by name.
    nodes: dict[str, _Watched] = field(default_factory=dict[str, _Watched])


class SpotHistory:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self._watched: dict[str, _Watched] = {}
        # Nodes with a reclaim notice that was counted.
        self._noticed: set[str] = set()

    def changed(self, before: NodeView | None, after: NodeView | None) -> None:
        """A node came, changed or went."""
        if before is not None and (after is None or after.name != before.name):
            self._gone(before.name)
        if after is not None and after.spot:
            self._seen(after)

    def pools(self) -> tuple[SpotPool, ...]:
        """What was observed until now, in whole node-hours, by name."""
        now = self._clock()
        return tuple(
            SpotPool(name, int(self._seconds(pool, now) // 3600), pool.interruptions)
            for name, pool in sorted(self._pools.items())
        )

    def _seen(self, node: NodeView) -> None:
        name = node.name
        if any(taint.key == TAINT_RECLAIM for taint in node.taints):
            if name not in self._noticed:
                self._noticed.add(name)
                self._end(name, interrupted=True, pool=pool_of(node))
            return
        if name in self._noticed:
            return
        watched = self._watched.get(name)
        if watched is None:
            watched = _Watched(pool_of(node), self._clock())
            pool = self._pool(watched.pool)
            if pool is None:
                return
            self._watched[name] = pool.nodes[name] = watched
        scaled_down = any(taint.key in _SCALED_DOWN for taint in node.taints)
        watched.open = not (node.unschedulable or scaled_down)

    def _gone(self, name: str) -> None:
        if name in self._noticed:
            self._noticed.discard(name)
            return
        watched = self._watched.get(name)
        if watched is not None:
            self._end(name, interrupted=watched.open, pool=watched.pool)

    def _end(self, name: str, *, interrupted: bool, pool: str) -> None:
        watched = self._watched.pop(name, None)
        found = self._pool(watched.pool if watched is not None else pool)
        if found is None:
            return
        found.interruptions += interrupted
        if watched is not None:
            del found.nodes[name]
            found.seconds += max((self._clock() - watched.since).total_seconds(), 0.0)

    def _pool(self, name: str) -> _Pool | None:
        if name not in self._pools and len(self._pools) >= POOLS_MAX:
            return None
        return self._pools.setdefault(name, _Pool())

    @staticmethod
    def _seconds(pool: _Pool, now: datetime) -> float:
        there = sum(max((now - node.since).total_seconds(), 0.0) for node in pool.nodes.values())
        return pool.seconds + there
