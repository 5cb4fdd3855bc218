"""Worker pods that are gone: when they went, and which were done until that is decided about.

A kubelet reports how a deleted pod ended, and removes the pod a moment later. Both may happen
between two decisions. Without this record the second event would erase the first, and a job that
finished within its grace would run again. A pod that ended otherwise while it was deleted was
interrupted. So was a pod about which nothing is known. A new leader has no record of pods that went
before it watched.
"""

from collections import OrderedDict
from collections.abc import Callable, Set
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_api.settings import EXIT_DONE
from gpujob_operator.decide.model.snapshot import GonePod, PodPhase, PodView
from gpujob_operator.decide.model.workers import place_of

# How long pods are remembered as gone. By then an agent has read its GPUs again.
GONE_SECONDS = 60.0
PODS_REMEMBERED_MAX = 4096
# How long to wait for the event of a pod's removal after a write found the pod gone. The event has
# how the pod ended. A working watch delivers it within this time.
REMOVAL_AWAITED_SECONDS = 5.0

# Returns the job whose worker the pod is, or None.
JobOf = Callable[[PodView], GPUJob | None]


class GonePods:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._gone: dict[str, GonePod] = {}
        # With the time at which each went, by UID.
        self._done: OrderedDict[str, tuple[PodView, datetime]] = OrderedDict()
        # Pods of a lost history, which may never have existed. Kept until all pods were listed.
        self._of_lost_history: Set[str] = frozenset()
        # Since when pods have been found gone whose removal was not seen.
        self._missing: dict[str, datetime] = {}

    def remember(self, pod: PodView) -> None:
        """Records a pod that went, in its last seen state. None of its processes runs any more."""
        self._missing.pop(pod.uid, None)
        self._gone[pod.uid] = GonePod(pod.uid, self._clock(), pod.gpus)
        if pod.exit_code != EXIT_DONE or pod.uid in self._of_lost_history:
            return
        # Containers other than the worker went with the pod, whatever was seen of them.
        self._done[pod.uid] = replace(pod, phase=PodPhase.SUCCEEDED), self._clock()
        if len(self._done) > PODS_REMEMBERED_MAX:
            self._done.popitem(last=False)

    def awaits_removal(self, pod: PodView) -> bool:
        """Returns whether the removal event may still arrive for a pod that a write found gone."""
        if pod.ended:
            return False
        since = self._missing.setdefault(pod.uid, self._clock())
        return (self._clock() - since).total_seconds() < REMOVAL_AWAITED_SECONDS

    def begin_another_history(self, uids: Set[str]) -> None:
        """Prepares for data that was restored from a backup.

        Recorded ends of pods may never have happened, and a list that lacks one of these pods
        proves nothing about its end.
        """
        self._done.clear()
        self._of_lost_history = uids

    def listed(self) -> None:
        """Notes that a list of all pods is stored."""
        self._of_lost_history = frozenset()

    def recent(self) -> tuple[GonePod, ...]:
        """Returns pods that went since the agents' last readings, or shortly before."""
        since = self._clock() - timedelta(seconds=GONE_SECONDS)
        self._gone = {uid: pod for uid, pod in self._gone.items() if pod.gone_at >= since}
        return tuple(self._gone.values())[-PODS_REMEMBERED_MAX:]

    def undecided(self, job_of: JobOf) -> tuple[PodView, ...]:
        """Returns pods that were done, of attempts that hold their GPUs.

        Drops pods of attempts that are over. After a restore, an attempt may get the number of a
        lost one, whose pod went before.
        """
        found: list[PodView] = []
        for pod, gone_at in list(self._done.values()):
            job = job_of(pod)
            if job is None or _is_over(pod.attempt, job) or _began_after(pod, job, gone_at):
                del self._done[pod.uid]
            elif place_of(pod, job) is not None:
                found.append(pod)
        return tuple(found)


def _is_over(attempt: int, job: GPUJob) -> bool:
    status = job.status
    given_up = attempt == status.attempt and status.placement is None
    return job.finished or attempt < status.attempt or given_up


def _began_after(pod: PodView, job: GPUJob, gone_at: datetime) -> bool:
    """Returns whether the attempt with the pod's number began after the pod went."""
    started_at = job.status.attempt_started_at
    return pod.attempt == job.status.attempt and started_at is not None and started_at > gone_at
