"""Jobs as whoever leads sees them: placed by what their pod records, until their status says so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_operator.decide.model.placement_record import is_recorded, recorded_status
from gpujob_operator.read.pods import pod_view
from tests.harness.pod_facts import job_uid_of


@dataclass(slots=True)
class _Recorded:
    pod_uid: str
    # As it is stored, without the placement.
    stored: GPUJob
    status: GPUJobStatus


class RecordedJobs:
    """Tell it of every job, and of every pod that comes and goes, in the order of their
    revisions."""

    def __init__(self) -> None:
        # By the job's UID.
        self._recorded: dict[str, _Recorded] = {}

    def seen(self, job: GPUJob) -> GPUJob:
        """The job, which is stored like this."""
        uid = job.metadata.uid
        recorded = self._recorded.get(uid)
        if recorded is None:
            return job
        if job.status.attempt >= recorded.status.attempt or job.finished:
            del self._recorded[uid]
            return job
        recorded.stored = job
        return replace(job, status=recorded.status)

    def is_of_another(self, pod: Mapping[str, Any], led_since: datetime | None) -> bool:
        """Whether the pod records a placement from before the time of the present leader, who may
        take it over by a status, or not."""
        try:
            record = pod_view(pod).record
        except FieldError:
            return False
        return record is not None and led_since is not None and record.placed_at < led_since

    def created(self, pod: Mapping[str, Any], job: GPUJob | None) -> GPUJob | None:
        """The job, which was `job`, as it is with this pod; None: the pod records nothing of it."""
        try:
            view = pod_view(pod)
        except FieldError:
            return None
        if job is None or not is_recorded(job, view):
            return None
        status = recorded_status(job, view)
        self._recorded[job.metadata.uid] = _Recorded(view.uid, job, status)
        return replace(job, status=status)

    def removed(self, pod: Mapping[str, Any]) -> GPUJob | None:
        """The job as it is without this pod; None: the pod recorded nothing that counted."""
        for uid, recorded in self._recorded.items():
            if recorded.pod_uid == pod["metadata"]["uid"]:
                del self._recorded[uid]
                return recorded.stored
        return None

    def pod_of(self, uid: str) -> str:
        """The UID of the pod that alone says where this job is placed, or ""."""
        recorded = self._recorded.get(uid)
        return "" if recorded is None else recorded.pod_uid

    def job_gone(self, uid: str) -> None:
        self._recorded.pop(uid, None)

    def restored(
        self, jobs: Iterable[GPUJob], pods: Iterable[Mapping[str, Any]]
    ) -> dict[str, GPUJob]:
        """The jobs by UID, as these pods record them: whatever else was recorded is lost."""
        self._recorded.clear()
        found = {job.metadata.uid: job for job in jobs}
        for pod in pods:
            uid = job_uid_of(pod)
            job = self.created(pod, found.get(uid))
            if job is not None:
                found[uid] = job
        return found
