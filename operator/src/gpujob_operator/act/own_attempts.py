"""Which attempts this process placed, and which of their pods it created.

The process that placed an attempt creates its pods, each of them once. A pod that is gone before
the status has its UID is never created again under its name, although its node may still run it. A
process that starts has no records, and treats every starting attempt as placed by another process.
"""

from dataclasses import dataclass, field, replace

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.plan import CreatePod, WriteStatus
from gpujob_operator.decide.model.snapshot import PerhapsCreated, Snapshot


@dataclass(slots=True)
class _Own:
    attempt: int
    # A request that places it had no answer and may have taken effect.
    unanswered: bool = False
    created: set[int] = field(default_factory=set[int])


class OwnAttempts:
    """Bounded by the number of starting attempts. Others are removed in the next cycle."""

    def __init__(self) -> None:
        # By the job's UID.
        self._own: dict[str, _Own] = {}

    def placing(self, item: WriteStatus) -> None:
        """Records a placement that is being written. The attempt counts as own until the answer."""
        if places_attempt(item):
            self._own[item.job.metadata.uid] = _Own(item.status.attempt)

    def unanswered(self, item: WriteStatus) -> None:
        """Records that a request with the placement had no answer."""
        own = self._own.get(item.job.metadata.uid)
        if own is not None and places_attempt(item):
            own.unanswered = True

    def conflicted(self, item: WriteStatus) -> None:
        """Handles a job that was changed before the request arrived.

        If an earlier request for the same placement had no answer, that request made the change,
        because only the leader assigns this number. If every request was answered, another process
        placed the attempt.
        """
        own = self._own.get(item.job.metadata.uid)
        if own is None or not own.unanswered:
            self.not_placed(item)

    def not_placed(self, item: WriteStatus) -> None:
        """Removes a placement that did not take effect."""
        if places_attempt(item):
            self._own.pop(item.job.metadata.uid, None)

    def created(self, item: CreatePod) -> None:
        own = self._own.get(item.job.metadata.uid)
        if own is not None and own.attempt == item.job.status.attempt:
            own.created.add(item.rank)

    def tell(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with pods of starting attempts that may have been created.

        Drops the records of other attempts.
        """
        starting = {
            job.metadata.uid: job
            for job in snapshot.jobs
            if job.status.phase is JobPhase.STARTING and job.status.placement is not None
        }
        for uid in self._own.keys() - starting.keys():
            del self._own[uid]
        found = [self._perhaps(job) for job in starting.values()]
        perhaps = tuple([one for one in found if one is not None])
        return replace(snapshot, perhaps_created=perhaps) if perhaps else snapshot

    def _perhaps(self, job: GPUJob) -> PerhapsCreated | None:
        placement, uid, attempt = job.status.placement, job.metadata.uid, job.status.attempt
        workers = placement.workers if placement is not None else ()
        unknown = [worker.rank for worker in workers if worker.pod_uid is None]
        own = self._own.get(uid)
        if own is None or own.attempt != attempt:
            ranks = tuple(unknown)
            return PerhapsCreated(uid, attempt, ranks, by_another=True) if ranks else None
        ranks = tuple([rank for rank in unknown if rank in own.created])
        return PerhapsCreated(uid, attempt, ranks) if ranks else None


def places_attempt(item: WriteStatus) -> bool:
    """Returns True for the first status that contains where an attempt runs."""
    status = item.status
    return status.placement is not None and status.attempt != item.job.status.attempt
