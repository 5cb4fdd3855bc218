"""Since when a kubelet has given a reason why a pod does not start.

The pod has the reason without its time. A pull may take an hour before it fails, so the time since
the pod was scheduled is no measure of how long the reason has existed.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.read.pods import CachedPod


class StartWaits:
    """Times of the presently waiting pods, by UID.

    A new process counts from when it first sees the pod.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._since: dict[str, datetime] = {}

    def noted(self, pod: CachedPod) -> CachedPod:
        """Returns the pod with the time.

        A changed reason starts no new wait, because a retrying kubelet alternates between two
        reasons.
        """
        if pod.view is None or not _waits(pod.view):
            self._since.pop(pod.uid, None)
            return pod
        since = self._since.setdefault(pod.uid, self._clock())
        return replace(pod, view=replace(pod.view, reason_since=since))

    def forget(self, uid: str) -> None:
        """Drops a pod that is gone."""
        self._since.pop(uid, None)

    def clock_moved(self, by: timedelta) -> tuple[str, ...]:
        """Moves the times with the clock. Returns the UIDs of the pods, to be noted again."""
        for uid in self._since:
            self._since[uid] += by
        return tuple(self._since)


def _waits(pod: PodView) -> bool:
    return bool(pod.reason) and pod.node is not None and pod.phase is PodPhase.PENDING
