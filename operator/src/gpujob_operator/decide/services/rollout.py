"""Which replicas to create and to remove.

1. A replica that leaves (an interruption, a preemption) is replaced at once, not after it is gone.
2. Replicas of an older revision that do not answer are removed at once. One that is parked would
   answer the next request, so it counts as one that answers. One that answered a moment ago may
   come back, so it is kept for a while if fewer than wanted answer.
3. At most one replica more than wanted exists while revisions change. An older one is removed only
   once as many as wanted answer without it, so no request finds fewer.
4. A replica is created once the one before it has its GPU, so that it can avoid that node. While
   enough answer, it is created once a removed one has left its GPU, so that it can go there.
5. Of too many replicas, those that do not answer go first, waiting ones before starting ones, then
   the newest.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_operator.decide.services.replicas import Replica

SURGE_MAX = 1
# A failed probe, a drained node and a restarted one take less.
AWAY_MAX = timedelta(minutes=5)
CREATED_AT_ONCE = 1
# Ordinals that may be in use by jobs that are still being deleted.
ORDINALS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Rollout:
    """Ordinals of the replicas to create, and replicas to remove with the reason."""

    creates: tuple[int, ...] = ()
    removes: tuple[tuple[Replica, str], ...] = ()

    @property
    def drains(self) -> bool:
        """Whether a replica is removed that has a GPU."""
        return any(one.is_placed for one, _ in self.removes)


def roll_out(
    replicas: Sequence[Replica],
    revision: str,
    wanted: int,
    now: datetime,
    *,
    without: Container[str] = (),
    draining: bool = False,
) -> Rollout:
    """Returns the next step to `wanted` replicas of this revision.

    `without` has the names of replicas that are removed anyway. `draining` is whether a replica
    that was removed may still hold its GPU.
    """
    live = [one for one in replicas if one.live and one.name not in without]
    new = [one for one in live if one.revision == revision]
    old = [one for one in live if one.revision != revision]
    away = [one for one in old if not one.available]
    old = [one for one in old if one.available]
    ready = len(old) + sum(one.available for one in new)
    back = [one for one in away if _may_come_back(one, now)][: max(0, wanted - ready)]
    removes = [(one, "its revision is replaced") for one in away if one not in back]
    kept = [*old, *back]
    for one in old:
        if ready - 1 < wanted:
            break
        removes.append((one, "its revision is replaced"))
        kept.remove(one)
        ready -= 1
    surplus = len(new) - wanted
    if surplus > 0:
        removes += [(one, "fewer replicas are wanted") for one in _least_useful(new)[:surplus]]
    missing = min(wanted - len(new), wanted + SURGE_MAX - len(new) - len(kept), CREATED_AT_ONCE)
    enough = ready >= wanted and (draining or bool(removes))
    if enough or any(not one.is_placed for one in new):
        missing = 0
    return Rollout(_free_ordinals(replicas, revision, max(0, missing)), tuple(removes))


def _may_come_back(replica: Replica, now: datetime) -> bool:
    since = replica.unavailable_since(now)
    return since is not None and now - since < AWAY_MAX


def _least_useful(replicas: Sequence[Replica]) -> list[Replica]:
    """Returns the replicas in the order in which they may go. The oldest goes last."""
    newest_first = list(reversed(replicas))
    return sorted(newest_first, key=lambda one: (one.ready, one.is_placed))


def _free_ordinals(replicas: Sequence[Replica], revision: str, count: int) -> tuple[int, ...]:
    used = {one.ordinal for one in replicas if one.revision == revision}
    free = (number for number in range(ORDINALS_MAX) if number not in used)
    return tuple(number for number, _ in zip(free, range(count), strict=False))
