"""Whether a process still waits for a pod that it asked for."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.act.item_runner import LATE_SECONDS
from gpujob_operator.client.kube import REQUEST_SECONDS_MAX
from tests.simulation.api_server import ApiServer, Revision
from tests.simulation.job_facts import leads


class AwaitedPods:
    """Tell it of every write of a job by an operator."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        # By job UID: who last wrote that the job has no placement, and when that request was sent.
        self._written: dict[str, tuple[str, float]] = {}

    def written(self, revision: Revision, job: GPUJob) -> None:
        uid = job.metadata.uid
        if job.status.placement is None:
            self._written[uid] = revision.by, revision.sent_at
        else:
            self._written.pop(uid, None)

    def are_given_up(self, revision: Revision, job_uid: str) -> bool:
        """Whether the process whose request created this pod counts on no pod of that name any
        more. One that is frozen gives nothing up, and one that asked a moment ago perhaps asks once
        more, unless it wrote since that the job waits."""
        waited = self._api.seconds_since_asked(revision.object, revision.by)
        by, at = self._written.get(job_uid, ("", 0.0))
        has_written_since = by == revision.by and at > revision.at - waited
        asks = waited < REQUEST_SECONDS_MAX + LATE_SECONDS
        return has_written_since or not (asks and leads(revision.by, self._api))
