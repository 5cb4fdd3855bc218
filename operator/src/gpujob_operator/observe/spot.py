"""Counts spot interruptions: how long each pool's nodes were observed, and how many were reclaimed.

A node counts as reclaimed if it gets a reclaim notice that is not withdrawn, or vanishes while it
was open to new pods. A scale-down cordons or taints a node first and does not count. The leader
saves its counts with the Lease (`to_text`), and the next leader continues from them (`inherit`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_operator.decide.model.notices import NoticeKind, notice_of
from gpujob_operator.decide.model.snapshot import NodeView, SpotPool, pool_of
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# Pools beyond this number are not counted. A cluster has a handful.
POOLS_MAX = 256


@dataclass(slots=True)
class _Watched:
    """One existing node."""

    pool: str
    since: datetime
    # Whether new pods were allowed when the node was last seen.
    open: bool = True


@dataclass(slots=True)
class _Pool:
    seconds: float = 0.0
    interruptions: int = 0
    # Existing nodes, by name.
    nodes: dict[str, _Watched] = field(default_factory=dict[str, _Watched])


class SpotHistory:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self._watched: dict[str, _Watched] = {}
        # The pools of nodes with a reclaim notice that was counted, by the node's name.
        self._noticed: dict[str, str] = {}

    def changed(self, before: NodeView | None, after: NodeView | None) -> None:
        """Handles a node that was added, changed or deleted."""
        if before is not None and (after is None or after.name != before.name):
            self._gone(before.name)
        if after is None:
            return
        if after.spot and after.managed:
            self._seen(after)
        elif after.name in self._watched:
            # A label was removed, so its further fate is no sign about spot nodes.
            self._end(after.name, interrupted=False, pool="")

    def pools(self) -> tuple[SpotPool, ...]:
        """Returns the counts so far, in whole node-hours, by name."""
        now = self._clock()
        return tuple(
            SpotPool(name, int(self._seconds(pool, now) // 3600), pool.interruptions)
            for name, pool in sorted(self._pools.items())
        )

    def to_text(self) -> str:
        """Returns all counts for `inherit`: [seconds, interruptions] by pool."""
        now = self._clock()
        return json.dumps(
            {
                name: [int(self._seconds(pool, now)), pool.interruptions]
                for name, pool in sorted(self._pools.items())
            },
            separators=(",", ":"),
        )

    def inherit(self, text: str) -> None:
        """Continues from these counts instead of its own, which cover the same time.

        An empty or unreadable text changes nothing.
        """
        if not text:
            return
        try:
            known = {str(name): _counts(value) for name, value in json.loads(text).items()}
        except (ValueError, AttributeError, OverflowError, RecursionError) as error:
            log.warning("counts of spot pools unreadable", error=str(error))
            return
        now = self._clock()
        for pool in self._pools.values():
            pool.seconds, pool.interruptions = 0.0, 0
            for node in pool.nodes.values():
                node.since = now
        for name, (seconds, interruptions) in known.items():
            pool = self._pool(name)
            if pool is not None:
                pool.seconds, pool.interruptions = seconds, interruptions

    def _seen(self, node: NodeView) -> None:
        name = node.name
        notice = notice_of(node)
        if notice is not None and notice.kind is NoticeKind.RECLAIM:
            if name not in self._noticed:
                pool = self._end(name, interrupted=True, pool=pool_of(node))
                self._noticed[name] = pool
            return
        if name in self._noticed:
            self._withdraw(name)
        watched = self._watched.get(name)
        if watched is None:
            watched = _Watched(pool_of(node), self._clock())
            pool = self._pool(watched.pool)
            if pool is None:
                return
            self._watched[name] = pool.nodes[name] = watched
        # If Karpenter handles the notice itself, it marks reclaimed nodes like nodes that it
        # removes. Those are not counted.
        watched.open = not (node.unschedulable or notice is not None)

    def _gone(self, name: str) -> None:
        if name in self._noticed:
            del self._noticed[name]
            return
        watched = self._watched.get(name)
        if watched is not None:
            self._end(name, interrupted=watched.open, pool=watched.pool)

    def _withdraw(self, name: str) -> None:
        """Takes back the count of a notice that is gone although its node stays."""
        pool = self._pool(self._noticed.pop(name))
        if pool is not None:
            pool.interruptions = max(0, pool.interruptions - 1)

    def _end(self, name: str, *, interrupted: bool, pool: str) -> str:
        """Ends the watching of a node. Returns the pool that it counted in."""
        watched = self._watched.pop(name, None)
        counted_in = watched.pool if watched is not None else pool
        found = self._pool(counted_in)
        if found is None:
            return counted_in
        found.interruptions += interrupted
        if watched is not None:
            del found.nodes[name]
            found.seconds += max((self._clock() - watched.since).total_seconds(), 0.0)
        return counted_in

    def _pool(self, name: str) -> _Pool | None:
        if name not in self._pools and len(self._pools) >= POOLS_MAX:
            return None
        return self._pools.setdefault(name, _Pool())

    @staticmethod
    def _seconds(pool: _Pool, now: datetime) -> float:
        there = sum(max((now - node.since).total_seconds(), 0.0) for node in pool.nodes.values())
        return pool.seconds + there


def _counts(value: object) -> tuple[float, int]:
    """Reads two counts. Raises ValueError, and OverflowError for values too large for a float."""
    match value:
        case [int(seconds), int(interruptions)] if seconds >= 0 and interruptions >= 0:
            return float(seconds), interruptions
        case _:
            raise ValueError(f"[seconds, interruptions] expected; got {value!r}")
