"""The memory of GPUs by their agents' readings, and whether what jobs reserve has room there (I1).

A placement is judged in the light of every reading that its decision may have known. What jobs are
seen to use above their reservations is not free. A job may grow to what it was seen to use, whoever
is beside it; who was placed beside it by a plan that knew of the growth is judged again
(`harness.placements`).
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.leadership.cluster_clock import TOLERANCE_SECONDS
from tests.harness.builders import T0
from tests.harness.placements import Placements, by_then, held_bytes
from tests.simulation.api_server import Manifest, Revision
from tests.simulation.job_facts import (
    AttemptKey,
    attempt_key,
    is_shrink,
    is_within,
    places,
    used_bytes,
)

# A decision may rest on a reading this old. An unchanged one is not sent again for 28 s, and counts
# as new as long as its agent is connected. Then come the staleness limit, watch lag and writes
# under way.
READING_WINDOW_SECONDS = 75.0
# An operator's clock is that of the API server, as far as that tells whole seconds.
CLOCK_SLACK_SECONDS = TOLERANCE_SECONDS + 1.0
# Of each GPU: those of the window, and those that come while a write is under way.
READINGS_KEPT = 128


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    total_bytes: int
    driver_bytes: int
    unmanaged_bytes: int
    used: Mapping[AttemptKey, int]

    @property
    def room_bytes(self) -> int:
        """For all jobs together. An agent that lies may say any size."""
        return self.total_bytes - self.driver_bytes - self.unmanaged_bytes

    def excess_bytes(self, tenants: Iterable[GPUJob]) -> int:
        """By how much these jobs have more than there is, by what they reserve or use."""
        needed = (max(held_bytes(one), self.used.get(attempt_key(one), 0)) for one in tenants)
        return sum(needed) - self.room_bytes


class Room:
    """Feed it every reading, and every write by which a job gets a GPU or reserves other memory."""

    def __init__(self) -> None:
        # By node and UUID: what a node that lies calls its own is another GPU.
        self._readings: dict[Place, deque[Reading]] = defaultdict(
            lambda: deque(maxlen=READINGS_KEPT)
        )
        # The peak that agents saw.
        self._seen_bytes: dict[tuple[AttemptKey, Place], int] = {}
        self._placements = Placements()

    def read(
        self, at: float, node: str, gpus: Iterable[Manifest], workers: Mapping[str, AttemptKey]
    ) -> None:
        """What an agent writes, or sends to an operator. `workers` are by their pods' UIDs."""
        for gpu in gpus:
            if gpu["memoryUsedBytes"] > gpu["memoryTotalBytes"]:
                continue
            unmanaged = sum(
                process["memoryBytes"]
                for process in gpu.get("processes") or ()
                if process.get("podUid") is None
            )
            place, used = (node, gpu["uuid"]), used_bytes(gpu, workers)
            for attempt, now_bytes in used.items():
                key = attempt, place
                self._seen_bytes[key] = max(self._seen_bytes.get(key, 0), now_bytes)
            total, driver = gpu["memoryTotalBytes"], gpu["memoryReservedBytes"]
            self._readings[place].append(Reading(at, total, driver, unmanaged, used))

    def recent(self, place: Place, now: float) -> list[Reading]:
        """The readings of the window before this time, and those after it."""
        return [r for r in self._readings[place] if r.at >= now - READING_WINDOW_SECONDS]

    def forget_placements(self) -> None:
        self._placements.forget()

    def check(
        self, revision: Revision, before: GPUJob, job: GPUJob, place: Place, tenants: list[GPUJob]
    ) -> list[str]:
        """What is wrong with a write since which the job holds this GPU as it does."""
        if is_shrink(before, job):
            return []
        # A margin above what an agent saw is a decision.
        if is_within(before, job, self._seen_bytes.get((attempt_key(job), place), 0)):
            return self._placements.grown(place, revision.by, job)
        recent = self.recent(place, revision.at)
        # Without what jobs hold.
        room_bytes = max([reading.room_bytes for reading in recent], default=None)
        if room_bytes is None:
            return []
        reserved_bytes = sum(map(held_bytes, tenants))
        if reserved_bytes > room_bytes:
            took = f"{job.metadata.name} took {job.status.reservation}"
            return [f"{reserved_bytes} of {room_bytes} bytes after {took}"]
        if places(before) == places(job):
            return []
        self._placements.placed(place, revision.by, job, tenants, room_bytes)
        return self._taken_in_use(revision, job, place, tenants)

    def _taken_in_use(
        self, revision: Revision, job: GPUJob, place: Place, tenants: list[GPUJob]
    ) -> list[str]:
        """The job was placed on memory that others were seen to use above their reservations.

        Nobody says which reading the plan knew: it is wrong only by all that it may have known, so
        what was seen for the first time within the window is missed. A write may have been under
        way for long, and the use come since: the window ends when the plan was made.
        """
        decided_at = job.status.attempt_started_at
        if decided_at is None:
            return []
        decided_seconds = (decided_at - T0).total_seconds() - CLOCK_SLACK_SECONDS
        known = self.recent(place, min(revision.at, decided_seconds))
        there = by_then(job, tenants)
        excess_bytes = min([reading.excess_bytes(there) for reading in known], default=0)
        if excess_bytes <= 0:
            return []
        return [f"{job.metadata.name} was placed on {excess_bytes} bytes that others use"]
