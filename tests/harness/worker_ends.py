"""Which workers ended with 0, and whether the leader that decides can know of it. Pure.

A leader learns of an end from the pod. Exit 0 of a worker that was asked to end is none. A pod that
ends and goes while nobody leads, or before the leader has listed the pods, at first or after the
API server was away, leaves nothing of its end: the attempt counts as interrupted, and its work goes
on from the last checkpoint (`docs/promises.md`, I5).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpujob_api.codec import parse_time

# A leader has listed everything by then: it renews several times within a Lease's duration.
RENEWALS_UNTIL_LISTED = 5
# Where the API server was away, a watch may pause for ten seconds before it lists again; the Lease
# of the scenes is renewed every 0.4 s.
RENEWALS_UNTIL_LISTED_AGAIN = 30

# Job UID and attempt.
AttemptKey = tuple[str, int]


@dataclass(slots=True)
class _Ended:
    """`gone_in`: the leader that saw the pod go, 0 while there was none that could. `asked`: it was
    asked to end before, and nothing that it says proves that it was done."""

    asked: bool = False
    gone: bool = False
    gone_in: int = 0


@dataclass(slots=True)
class WorkerEnds:
    """Fed with Leases and pods in the order of their revisions."""

    # How often the lead changed, and when it did the last time.
    changes: int = 0
    led_since: datetime | None = None
    _holder: str = ""
    _renewals: int = 0
    _ended: dict[AttemptKey, dict[int, _Ended]] = field(
        default_factory=lambda: defaultdict[AttemptKey, dict[int, _Ended]](dict)
    )

    def fold_lease(self, lease: Mapping[str, Any]) -> bool:
        """Whether somebody else leads now."""
        holder = lease["spec"].get("holderIdentity") or ""
        if not holder or holder == self._holder:
            self._renewals += 1
            return False
        self._holder, self._renewals = holder, 0
        acquired = lease["spec"].get("acquireTime")
        self.led_since = parse_time(acquired) if acquired else None
        self.changes += 1
        return True

    def leader_at(self, decided_at: datetime | None) -> int | None:
        """Which leader it was that decided something then, if it is the present one: what another
        one asked for may arrive now. Without a Lease one leads all the time."""
        if decided_at is None or (self.led_since is not None and decided_at < self.led_since):
            return None
        return self.changes

    def watches_cut(self) -> None:
        """The API server went away, or is there again: what happens now may come in no event."""
        self._renewals = RENEWALS_UNTIL_LISTED - RENEWALS_UNTIL_LISTED_AGAIN

    def done(self, key: AttemptKey, rank: int, *, asked: bool = False) -> None:
        """A worker ended with 0; how it was when that was seen first."""
        self._ended[key].setdefault(rank, _Ended(asked))

    def asked_later(self, key: AttemptKey, rank: int) -> None:
        """The pod of a worker that had ended was evicted or deleted. A leader that stood still sees
        both at once, and cannot know which came first."""
        ended = self._ended.get(key, {}).get(rank)
        if ended is not None:
            ended.asked = True

    def gone(self, key: AttemptKey, rank: int) -> None:
        """A pod was removed."""
        ended = self._ended.get(key, {}).get(rank)
        if ended is not None:
            ended.gone = True
            listed = self._renewals >= RENEWALS_UNTIL_LISTED
            ended.gone_in = self.changes if listed else 0

    def count(self, key: AttemptKey) -> int:
        """How many workers of the attempt ended with 0."""
        return len(self._ended.get(key, ()))

    def known(self, key: AttemptKey) -> int:
        """Of how many of them the present leader knows. Without a Lease one leads all the time."""
        return sum(
            not self.changes or not one.gone or one.gone_in == self.changes
            for one in self._ended.get(key, {}).values()
            if not one.asked
        )
