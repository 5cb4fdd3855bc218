"""All pods that could be workers, kept from snapshot to snapshot by job and by owner."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.cache.diff import ListDiff
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.workers import JobName, job_name_of


@dataclass(slots=True)
class Pods:
    """All pods that could be workers, by the job whose name they have and by their controller
    owner. Kept from snapshot to snapshot."""

    _diff: ListDiff[PodView] = field(default_factory=lambda: ListDiff[PodView]())
    _by_uid: dict[str, PodView] = field(default_factory=dict[str, PodView])
    _namesakes: dict[JobName, dict[str, PodView]] = field(
        default_factory=dict[JobName, dict[str, PodView]]
    )
    _owned: dict[str, dict[str, PodView]] = field(default_factory=dict[str, dict[str, PodView]])

    def take(self, pods: tuple[PodView, ...]) -> tuple[set[JobName], set[str]]:
        """Brings it up to date; returns the names of jobs and the UIDs of owners of which a pod
        came, went or is not the same."""
        new, gone = self._diff.take(pods)
        names, owners = set[JobName](), set[str]()
        for pod in new:
            self._drop(self._by_uid.get(pod.uid), names, owners)
            self._put(pod, names, owners)
        for pod in gone:
            if self._by_uid.get(pod.uid) is pod:
                self._drop(pod, names, owners)
        return names, owners

    def namesakes(self, job: GPUJob) -> Iterable[PodView]:
        name = (job.metadata.namespace, job.metadata.name)
        return self._namesakes.get(name, {}).values()

    def owned(self, job_uid: str) -> tuple[PodView, ...]:
        """Pods that have this GPUJob for their controller owner, wherever and whatever they are."""
        pods = self._owned.get(job_uid, {}).values()
        return tuple(sorted(pods, key=lambda p: (p.attempt, p.rank, p.uid)))

    def _put(self, pod: PodView, names: set[JobName], owners: set[str]) -> None:
        self._by_uid[pod.uid] = pod
        name = job_name_of(pod)
        if name is not None:
            self._namesakes.setdefault(name, {})[pod.uid] = pod
            names.add(name)
            if pod.job_uid:
                self._owned.setdefault(pod.job_uid, {})[pod.uid] = pod
                owners.add(pod.job_uid)

    def _drop(self, pod: PodView | None, names: set[JobName], owners: set[str]) -> None:
        if pod is None:
            return
        del self._by_uid[pod.uid]
        name = job_name_of(pod)
        if name is None:
            return
        _take_out(self._namesakes, name, pod.uid)
        names.add(name)
        if pod.job_uid:
            _take_out(self._owned, pod.job_uid, pod.uid)
            owners.add(pod.job_uid)


def _take_out(groups: dict[Any, dict[str, PodView]], key: object, uid: str) -> None:
    """A group of nobody does not stay: keys come and go."""
    group = groups[key]
    del group[uid]
    if not group:
        del groups[key]
