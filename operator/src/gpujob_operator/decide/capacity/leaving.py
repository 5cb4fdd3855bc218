"""GPUs that the pods of deleted jobs leave within their grace.

Nothing is placed there while these pods live (I1, I3). No job is stopped either for a job that fits
once they have left (`preemption.after_deletions`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpujob_operator.decide.model.grace import LATE_SECONDS
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import PodView


@dataclass(frozen=True, slots=True)
class LeavingPods:
    """The seconds until each GPU has to be free of these pods, and the UIDs of their jobs."""

    seconds: Mapping[Place, float] = field(default_factory=dict[Place, float])
    jobs: frozenset[str] = frozenset()


def leaving_pods(pods: Iterable[PodView], now: datetime, grace_seconds_max: float) -> LeavingPods:
    """Returns those of these pods that are expected to end within their grace.

    A pod that outlives its grace, on a dead node for example, may never end. Nobody waits for a
    pod with a longer grace than jobs can have.
    """
    late, longest = timedelta(seconds=LATE_SECONDS), timedelta(seconds=grace_seconds_max)
    seconds: dict[Place, float] = {}
    jobs: set[str] = set()
    for pod in pods:
        if pod.deletion_at is None or pod.finished or pod.node is None:
            continue
        left = pod.deletion_at + late - now
        if not timedelta() < left <= longest + late:
            continue
        jobs.add(pod.job_uid)
        for uuid in pod.gpus:
            place = pod.node, uuid
            seconds[place] = max(seconds.get(place, 0.0), left.total_seconds())
    return LeavingPods(seconds, frozenset(jobs))
