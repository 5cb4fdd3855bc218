"""Jobs whose placement is recorded by their pods, until a status has it.

A leader relies on the records of two kinds of pods: pods that it creates itself, and pods that
existed when it began to lead, before it decided anything. A pod with a record that comes later was
created by an earlier leader. That pod is deleted, and its worker does not begin.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from gpujob_api.gpujob import GPUJob, GPUJobStatus, Placement
from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.model.crowded_records import crowded_out
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.placement_record import (
    is_recorded,
    next_pod_name,
    pods_with_records,
    recorded_status,
    records,
)
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.workers import with_pod_uids


def allocatable_bytes(gpu_nodes: Iterable[GPUNode]) -> dict[Place, int]:
    """Returns the memory that attempts may hold, by node and GPU UUID."""
    return {
        (node.metadata.name, gpu.uuid): gpu.memory_total_bytes - gpu.memory_reserved_bytes
        for node in gpu_nodes
        for gpu in node.status.gpus
    }


@dataclass(slots=True)
class _Recorded:
    # The stored job, without the placement.
    stored: GPUJob
    status: GPUJobStatus

    @property
    def job(self) -> GPUJob:
        return replace(self.stored, status=self.status)


class PlacementRecords:
    """Recorded jobs by UID. `show` is called with each job that decisions have to see
    differently.
    """

    def __init__(self, show: Callable[[GPUJob], None]) -> None:
        self._show = show
        self._recorded: dict[str, _Recorded] = {}
        # An ordered set.
        self._perhaps_placed: dict[str, None] = {}

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(self._recorded)

    @property
    def perhaps_placed(self) -> tuple[str, ...]:
        """Pending jobs that another process may have placed unseen."""
        return tuple(self._perhaps_placed)

    @property
    def leaves_doubt(self) -> bool:
        """Whether stored objects do not show the next leader which attempts exist.

        It must then not assume an orderly handover.
        """
        return bool(self._recorded or self._perhaps_placed)

    def statuses(self) -> tuple[WriteStatus, ...]:
        """Returns the statuses that pods record, to be written before this process leaves."""
        return tuple(WriteStatus(one.job, one.status) for one in self._recorded.values())

    def seen(self, job: GPUJob) -> GPUJob:
        """Returns the stored job as decisions have to see it."""
        uid = job.metadata.uid
        if job.status.attempt > 0 or job.finished:
            self._perhaps_placed.pop(uid, None)
        recorded = self._recorded.get(uid)
        if recorded is None:
            return job
        if job.status.attempt >= recorded.status.attempt or job.finished:
            del self._recorded[uid]
            return job
        recorded.stored = job
        return recorded.job

    def forget(self, uid: str) -> None:
        """Drops a job that is gone."""
        self._recorded.pop(uid, None)
        self._perhaps_placed.pop(uid, None)

    def place(self, job: GPUJob, status: GPUJobStatus) -> None:
        """Records that the pod with this status of the job is about to be created."""
        recorded = self._recorded[job.metadata.uid] = _Recorded(job, status)
        self._show(recorded.job)

    def is_placed(self, uid: str) -> bool:
        """Returns whether a pod records the placement of the job, or is about to."""
        return uid in self._recorded

    def withdraw(self, uid: str, *, in_doubt: bool) -> None:
        """Removes the record, because no status was written and no pod was created.

        `in_doubt` means that a pod may have been created.
        """
        recorded = self._recorded.pop(uid, None)
        if in_doubt:
            self._perhaps_placed[uid] = None
        if recorded is not None:
            self._show(recorded.stored)

    def created(self, pod: PodView) -> None:
        """Handles a created pod: the requested one, or the pod of another leader.

        The pod's record is then authoritative, because the pod uses the GPUs of its record.
        """
        if pod.record is None:
            return
        recorded = self._recorded.get(pod.record.job_uid)
        if recorded is None or recorded.status.attempt != pod.attempt:
            return
        if not records(pod, recorded.stored):
            return
        status = with_pod_uids(recorded.status, [pod])
        if _places(status.placement) != _places(pod.record.placement):
            status = recorded_status(recorded.stored, pod)
        if status is not recorded.status:
            recorded.status = status
            self._show(recorded.job)

    def begin(
        self,
        jobs: Iterable[GPUJob],
        pods: Iterable[PodView],
        allocatable_bytes: Mapping[Place, int],
        groups: Mapping[str, str],
        *,
        in_doubt: bool,
    ) -> None:
        """Begins leadership.

        `jobs` and `pods` are all that exist, `allocatable_bytes` is what all jobs on a GPU may
        hold, and `groups` has the sharing group of each queue. `in_doubt` means that a request of
        the last leader may still arrive. A pod that is being deleted does not count, because an
        earlier leader may have deleted it as late. A pod whose GPUs were given to other jobs does
        not count either, unless it has ended.
        """
        before, self._recorded = self._recorded, {}
        by_name = pods_with_records(pods)
        stored: list[GPUJob] = []
        recorded: dict[str, PodView] = {}
        for seen in jobs:
            uid = seen.metadata.uid
            job = before[uid].stored if uid in before else seen
            stored.append(job)
            pod = by_name.get(next_pod_name(job))
            if pod is not None and is_recorded(job, pod):
                recorded[uid] = pod
            if job is not seen:
                self._show(job)
        passed_over = _passed_over(stored, recorded, allocatable_bytes, groups)
        self._perhaps_placed = {}
        for job in stored:
            uid, pod = job.metadata.uid, recorded.get(job.metadata.uid)
            if pod is not None and uid not in passed_over:
                self.place(job, recorded_status(job, pod))
                continue
            is_new = job.spec.workers == 1 and job.status.attempt == 0 and not job.finished
            if is_new and (in_doubt or uid in passed_over):
                self._perhaps_placed[uid] = None


def _passed_over(
    stored: Iterable[GPUJob],
    recorded: Mapping[str, PodView],
    allocatable_bytes: Mapping[Place, int],
    groups: Mapping[str, str],
) -> Set[str]:
    """Returns the UIDs of jobs whose pods' records do not count."""
    going = {uid for uid, pod in recorded.items() if pod.deletion_at is not None}
    running = [
        replace(job, status=recorded_status(job, pod))
        for job in stored
        if (pod := recorded.get(job.metadata.uid)) is not None
        if not (pod.ended or job.metadata.uid in going)
    ]
    return going | crowded_out(running, stored, allocatable_bytes, groups)


def _places(placement: Placement | None) -> list[tuple[str, tuple[str, ...]]]:
    workers = placement.workers if placement is not None else ()
    return [(worker.node, worker.gpus) for worker in workers]
