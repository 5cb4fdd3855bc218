"""Finished jobs that are to be deleted at a time of their own (`spec.ttlSecondsAfterFinished`)."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.cache.deadlines import Deadlines


@dataclass(slots=True)
class Expiries:
    _later: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    # Those whose time has come, until they are gone.
    _now: set[str] = field(default_factory=set[str])

    def put(self, job: GPUJob) -> None:
        """The job as it is now."""
        uid = job.metadata.uid
        self.drop(uid)
        at = expires_at(job)
        if at is not None:
            self._later.put(uid, at)

    def drop(self, uid: str) -> None:
        self._later.drop(uid)
        self._now.discard(uid)

    def due(self, now: datetime) -> list[str]:
        """UIDs of the jobs to delete, in order: in every cycle until they are gone."""
        self._now.update(self._later.due(now))
        return sorted(self._now)

    @property
    def next_at(self) -> datetime | None:
        """When the first of the others is due."""
        return self._later.first


def expires_at(job: GPUJob) -> datetime | None:
    """When the job is to be deleted; None: never, or somebody has asked for it already."""
    seconds, finished_at = job.spec.ttl_seconds_after_finished, job.status.finished_at
    if seconds is None or finished_at is None or not job.finished:
        return None
    if job.metadata.deletion_timestamp is not None:
        return None
    return finished_at + timedelta(seconds=seconds)
