"""Worker pods that are gone: when they went, and which were done until that is decided upon.

A kubelet says how a pod that is being deleted ended, and removes the pod a moment later. Both may
come between two decisions, and the second would take the first away: a job that was done within
its grace would run once more. What ended otherwise while it was deleted was interrupted, as is a
pod of which nothing is known. A new leader knows of no pod that went before it watched.
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
# How long the event of a pod's removal is awaited where a write found the pod gone. It says how the
# pod ended. A watch that works brings it within this time.
REMOVAL_AWAITED_SECONDS = 5.0

# The job whose worker the pod is, or None.
JobOf = Callable[[PodView], GPUJob | None]


class GonePods:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._gone: dict[str, GonePod] = {}
        self._done: OrderedDict[str, PodView] = OrderedDict()
        # Pods of a history that was lost, which may never have been: until all pods were listed.
        self._of_lost_history: Set[str] = frozenset()
        # Since when pods were found gone whose removal was not seen.
        self._missing: dict[str, datetime] = {}

    def remember(self, pod: PodView) -> None:
        """A pod that went, as it was seen last. Nothing of it runs any more."""
        self._missing.pop(pod.uid, None)
        self._gone[pod.uid] = GonePod(pod.uid, self._clock(), pod.gpus)
        if pod.exit_code != EXIT_DONE or pod.uid in self._of_lost_history:
            return
        # Containers beside the worker went with the pod, whatever was seen of them.
        self._done[pod.uid] = replace(pod, phase=PodPhase.SUCCEEDED)
        if len(self._done) > PODS_REMEMBERED_MAX:
            self._done.popitem(last=False)

    def awaits_removal(self, pod: PodView) -> bool:
        """Whether the event of the removal may still come of a pod that a write found gone."""
        if pod.ended:
            return False
        since = self._missing.setdefault(pod.uid, self._clock())
        return (self._clock() - since).total_seconds() < REMOVAL_AWAITED_SECONDS

    def begin_another_history(self, uids: Set[str]) -> None:
        """The API server's data was restored: how pods ended may never have been, and a list that
        lacks one of these pods says nothing of its end."""
        self._done.clear()
        self._of_lost_history = uids

    def listed(self) -> None:
        """A list of all pods is stored."""
        self._of_lost_history = frozenset()

    def recent(self) -> tuple[GonePod, ...]:
        """Pods that went since the agents' last readings, or shortly before."""
        since = self._clock() - timedelta(seconds=GONE_SECONDS)
        self._gone = {uid: pod for uid, pod in self._gone.items() if pod.gone_at >= since}
        return tuple(self._gone.values())[-PODS_REMEMBERED_MAX:]

    def undecided(self, job_of: JobOf) -> tuple[PodView, ...]:
        """Those that were done, of attempts that hold their GPUs. Forgets those of attempts that
        are over."""
        found: list[PodView] = []
        for pod in list(self._done.values()):
            job = job_of(pod)
            if job is None or _is_over(pod.attempt, job):
                del self._done[pod.uid]
            elif place_of(pod, job) is not None:
                found.append(pod)
        return tuple(found)


def _is_over(attempt: int, job: GPUJob) -> bool:
    status = job.status
    given_up = attempt == status.attempt and status.placement is None
    return job.finished or attempt < status.attempt or given_up
