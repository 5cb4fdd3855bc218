"""The requests to park and to wake, for the replies to the reports of replicas and of gates.

They are kept in memory only. After a start of the operator each replica stays as it is, until the
gates of its service report again.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_operator.decide.model.snapshot import Parking, Snapshot


class ParkingRequests:
    """The newest requests. `changed` is called if they differ from those before."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._requests: Mapping[str, Parking] = {}
        self._waking_since: dict[str, datetime] = {}
        # Replicas whose reservation is complete in what the planner assumes.
        self._complete: frozenset[str] = frozenset()

    def ask(self, requests: Iterable[Parking], now: datetime) -> None:
        """Takes the requests of one round. They replace all earlier ones."""
        before, self._requests = self._requests, {one.job_uid: one for one in requests}
        waking = [uid for uid, one in self._requests.items() if not one.parks and not one.rests]
        self._waking_since = {uid: self._waking_since.get(uid, now) for uid in waking}
        if before != self._requests:
            self._changed()

    @property
    def waking_since(self) -> Mapping[str, datetime]:
        """The times since which replicas are asked to wake, by the UIDs of their jobs."""
        return self._waking_since

    def current(self) -> tuple[Parking, ...]:
        """Returns the requests for the next cycle."""
        return tuple(one for one in self._requests.values() if one.parks or not one.rests)

    def planned(self, snapshot: Snapshot) -> None:
        """Notes the reservations with which a cycle was planned, writes in flight included."""
        if not self._waking_since:
            self._complete = frozenset()
            return
        self._complete = frozenset(
            job.metadata.uid
            for job in snapshot.jobs
            if job.metadata.uid in self._waking_since and not _is_parked(job)
        )

    def answer(self, job: GPUJob) -> bool | None:
        """Returns the request to a replica: True to park, False to wake, None for neither.

        `job` is the stored version. A replica may wake once all of its memory is reserved, both in
        the stored status and in the one that the planner assumes: otherwise other jobs may get that
        memory.
        """
        request = self._requests.get(job.metadata.uid)
        if request is None or (request.rests and not request.parks):
            return None
        if request.parks:
            return True
        complete = job.metadata.uid in self._complete and not _is_parked(job)
        return False if complete else None

    def rests(self, job_uid: str) -> bool:
        """Returns whether gates have to send the replica no requests."""
        request = self._requests.get(job_uid)
        return request is not None and request.rests


def _is_parked(job: GPUJob) -> bool:
    held = job.status.reservation
    return held is not None and held.source is ReservationSource.PARKED
