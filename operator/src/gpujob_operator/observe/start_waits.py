"""Since when a kubelet has given a reason why a pod does not start.

The pod says the reason and no time of it. A pull may take an hour before it fails, so the time
since the pod was scheduled says nothing of how long the reason has been there.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.read.pods import CachedPod


class StartWaits:
    """Times by the pod's UID, of the pods that wait now. A new process counts from when it first
    sees the pod."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._since: dict[str, datetime] = {}

    def noted(self, pod: CachedPod) -> CachedPod:
        """The pod with the time. Another reason in the place of the first one starts no new wait: a
        kubelet that tries again changes between two."""
        if pod.view is None or not _waits(pod.view):
            self._since.pop(pod.uid, None)
            return pod
        since = self._since.setdefault(pod.uid, self._clock())
        return replace(pod, view=replace(pod.view, reason_since=since))

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._since.pop(uid, None)

    def clock_moved(self, by: timedelta) -> tuple[str, ...]:
        """Moves the times with the clock. Returns the UIDs of the pods, to be noted again."""
        for uid in self._since:
            self._since[uid] += by
        return tuple(self._since)


def _waits(pod: PodView) -> bool:
    return bool(pod.reason) and pod.node is not None and pod.phase is PodPhase.PENDING
