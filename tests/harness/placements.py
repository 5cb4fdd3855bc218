"""Placements that are judged again when a job beside them grows (I1). Pure.

A job may reserve what an agent saw it use, whoever is beside it: that is measured and not decided.
Who is placed there in the same plan, or in a later one, has to leave room for it, whichever of the
two writes comes first: for the plan the growth came first.

Plans are compared by their moments on the clock of the process that made both: it writes them into
both statuses, and in every plan it counts the growth that it has decided and not yet written. So
nobody is accused who could not know. Missed are placements by another process, those of an earlier
plan, of which nothing here says what it knew, and growth whose status was decided again before it
was sent.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gpujob import GPUJob

# Of each GPU. Growth is written within seconds of its plan.
PLACEMENTS_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Placement:
    job: str
    by: Hashable
    decided_at: datetime
    room_bytes: int
    # What each job on the GPU reserved when the placement was written, by UID.
    reserved: dict[str, int]

    @property
    def excess_bytes(self) -> int:
        return sum(self.reserved.values()) - self.room_bytes


class Placements:
    """Tell it of every placement and of all growth. `by` is the process that decided it."""

    def __init__(self) -> None:
        # By whatever names a GPU.
        self._on: dict[Hashable, deque[_Placement]] = defaultdict(
            lambda: deque(maxlen=PLACEMENTS_KEPT)
        )

    def placed(
        self, gpu: Hashable, by: Hashable, job: GPUJob, tenants: Iterable[GPUJob], room_bytes: int
    ) -> None:
        """The job came to this GPU, where `tenants`, the job among them, may have so much."""
        decided_at = job.status.attempt_started_at
        if decided_at is not None:
            known = {one.metadata.uid: held_bytes(one) for one in by_then(job, tenants)}
            placement = _Placement(job.metadata.name, by, decided_at, room_bytes, known)
            self._on[gpu].append(placement)

    def grown(self, gpu: Hashable, by: Hashable, job: GPUJob) -> list[str]:
        """The job reserves more on this GPU. Which placements left no room for it."""
        uid, decided_at = job.metadata.uid, job.status.observed_at
        found: list[str] = []
        for one in self._on[gpu]:
            if uid not in one.reserved or one.by != by:
                continue
            if decided_at is None or decided_at > one.decided_at:
                continue
            # Other growth comes on top.
            one.reserved[uid] = max(one.reserved[uid], held_bytes(job))
            if one.excess_bytes > 0:
                text = f"{one.job} was placed with {one.excess_bytes} bytes too much"
                found.append(f"{text}: its plan knew that {job.metadata.name} grows")
        return found

    def forget(self) -> None:
        """What was written is lost."""
        self._on.clear()


def by_then(job: GPUJob, tenants: Iterable[GPUJob]) -> list[GPUJob]:
    """Those of whom the plan that placed the job may have known. Another process may have placed
    somebody since, before this write arrived."""
    at = job.status.attempt_started_at
    started = ((one, one.status.attempt_started_at) for one in tenants)
    return [one for one, since in started if at is None or (since is not None and since <= at)]


def held_bytes(job: GPUJob) -> int:
    held = job.status.reservation
    return 0 if held is None else held.memory_bytes
