"""Pods that the API server refused to create, as decisions see them.

A refusal is not stored anywhere: a process that starts hears it again when it tries again.
"""

from collections import OrderedDict
from dataclasses import replace

from gpujob_api.visible import visible
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.snapshot import RefusedPod, Snapshot

REFUSALS_MAX = 10_000
MESSAGE_CHARACTERS_MAX = 512


class Refusals:
    """The newest answer for each worker of a job. Bounded."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, int], RefusedPod] = OrderedDict()

    def refused(self, item: CreatePod, message: str) -> None:
        job, key = item.job, (item.job.metadata.uid, item.rank)
        self._refused.pop(key, None)
        text = visible(message[:MESSAGE_CHARACTERS_MAX])
        self._refused[key] = RefusedPod(job.metadata.uid, job.status.attempt, item.rank, text)
        if len(self._refused) > REFUSALS_MAX:
            self._refused.popitem(last=False)

    def created(self, item: CreatePod) -> None:
        self._refused.pop((item.job.metadata.uid, item.rank), None)

    def tell(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what was refused of the attempts that are in it; forgets the rest."""
        if not self._refused:
            return snapshot
        attempts = {job.metadata.uid: job.status.attempt for job in snapshot.jobs}
        for key, one in list(self._refused.items()):
            if attempts.get(one.job_uid) != one.attempt:
                del self._refused[key]
        return replace(snapshot, refused_pods=tuple(self._refused.values()))
