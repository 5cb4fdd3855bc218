"""Worker pods that ended and are gone, until it is decided what their end means.

A kubelet tells how a pod that is being deleted ended, and removes the pod a moment later. Both may
come between two decisions, and the second would take the first away: a job that was done within
its grace would run once more. A new leader knows of no pod that went before it watched.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.workers import place_of

PODS_REMEMBERED_MAX = 4096

# The job whose worker the pod is, or None.
JobOf = Callable[[PodView], GPUJob | None]


class EndedPods:
    def __init__(self) -> None:
        self._pods: OrderedDict[str, PodView] = OrderedDict()

    def remember(self, pod: PodView) -> None:
        """A pod that is gone, as it was seen last. Nothing of it runs any more."""
        if not pod.ended:
            return
        if not pod.finished:
            phase = PodPhase.FAILED if pod.exit_code else PodPhase.SUCCEEDED
            pod = replace(pod, phase=phase)
        self._pods[pod.uid] = pod
        if len(self._pods) > PODS_REMEMBERED_MAX:
            self._pods.popitem(last=False)

    def forget(self, uid: str) -> bool:
        return self._pods.pop(uid, None) is not None

    def clear(self) -> None:
        self._pods.clear()

    def undecided(self, job_of: JobOf) -> tuple[PodView, ...]:
        """The workers of attempts that hold their GPUs. Forgets those of attempts that are over."""
        found: list[PodView] = []
        for pod in list(self._pods.values()):
            job = job_of(pod)
            if job is None or _is_over(pod.attempt, job):
                del self._pods[pod.uid]
            elif place_of(pod, job) is not None:
                found.append(pod)
        return tuple(found)


def _is_over(attempt: int, job: GPUJob) -> bool:
    status = job.status
    given_up = attempt == status.attempt and status.placement is None
    return job.finished or attempt < status.attempt or given_up
