"""The replicas of a service, as far as decisions need them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuservice import GPUServiceStatus, ReplicaStatus
from gpujob_api.serving import ENV_SERVING_HOST, ServingReport
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.service_plan import ServiceJob
from gpujob_operator.decide.model.services import replica_id
from gpujob_operator.decide.model.snapshot import PodView

# Short, because a job's name has at most 52 characters.
MEASUREMENT = "pick"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica. A finished one has ended by itself, because a server never ends otherwise."""

    job: GPUJob
    revision: str
    ordinal: int
    pod: PodView | None
    report: ServingReport | None
    # What the service's status has of it, if it has it.
    known: ReplicaStatus | None = None

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def finished(self) -> bool:
        return self.job.finished

    @property
    def leaving(self) -> bool:
        """Whether it gets no more requests soon: deleted, stopped, or its pod is being deleted."""
        deleted = self.job.metadata.deletion_timestamp is not None
        pod_leaves = self.pod is not None and self.pod.deletion_at is not None
        return deleted or self.job.status.stop is not None or pod_leaves

    @property
    def live(self) -> bool:
        return not self.finished and not self.leaving

    @property
    def available(self) -> bool:
        """Whether its readiness probe succeeds: requests are sent to it, or one would wake it."""
        running = self.job.status.phase in (JobPhase.STARTING, JobPhase.RUNNING)
        return self.live and running and self.pod is not None and self.pod.ready

    @property
    def has_moved(self) -> bool:
        """Whether its weights are in the memory of the host, by the newest report.

        A new leader has no report until the replica has reached it. Until then the status counts.
        """
        if self.report is None:
            return self.known is not None and self.known.parked
        return self.report.parked_seconds is not None

    @property
    def parked(self) -> bool:
        """Whether a request would wake it: its weights have moved, and its process is well."""
        return self.has_moved and self.available

    @property
    def ready(self) -> bool:
        """Whether requests are sent to it."""
        return self.available and not self.parked

    def unavailable_since(self, now: datetime) -> datetime | None:
        """Returns since when it does not answer, or None if it answers or has never answered."""
        if self.available or self.known is None:
            return None
        answered = self.known.ready or self.known.parked
        return self.known.unavailable_since or (now if answered else None)

    @property
    def is_placed(self) -> bool:
        return self.job.status.placement is not None

    def why_not_ready(self) -> str:
        """Returns the reason in words, with the next step of the job's own conditions."""
        status = self.job.status
        if self.leaving:
            return status.stop.message if status.stop is not None else "it is being deleted"
        if self.parked:
            return "its weights are in the memory of the host; a request wakes it"
        for kind in (conditions.SCHEDULED, conditions.RUNNING):
            condition = conditions.find(status, kind)
            if condition is not None and condition.status.value != "True":
                return f"{condition.reason}: {_advised(condition.message)}"
        if status.phase is JobPhase.PENDING:
            return "it waits for a GPU"
        log = f"kubectl gpujob logs {self.name} -n {self.job.metadata.namespace}"
        return f"it has started and does not answer its readiness probe yet ({log})"

    def why_ended(self) -> str:
        """Returns why it ended by itself."""
        failure = self.job.status.failure
        if failure is not None:
            return f"{failure.failure_class.value}: {_advised(failure.message)}"
        return "it ended with exit code 0: a server must run until it is stopped"


def _advised(message: str) -> str:
    """Returns the message with the next step of a service, whose jobs are not the user's."""
    text = message.replace("create the job again", "edit the GPUService")
    if "address already in use" in text.lower():
        text += (
            "; if replicas share a host (process nodes, hostNetwork), each must listen on the "
            f"address in its variable {ENV_SERVING_HOST}"
        )
    return text


def replicas_of(jobs: Iterable[ServiceJob], status: GPUServiceStatus) -> tuple[Replica, ...]:
    """Returns the replicas among a service's jobs, oldest first."""
    found: list[Replica] = []
    known = {one.name: one for one in status.replicas}
    for one in jobs:
        found_id = replica_id(one.job)
        if found_id is None:
            continue
        before = known.get(one.job.metadata.name)
        found.append(
            Replica(one.job, found_id.revision, found_id.ordinal, one.pod, one.report, before)
        )
    return tuple(sorted(found, key=created_at))


def created_at(replica: Replica) -> tuple[float, str]:
    """Returns the key that sorts replicas by age, oldest first."""
    time = replica.job.metadata.creation_timestamp
    return (time.timestamp() if time is not None else 0.0, replica.name)


def measurement_name(service: str, key: str) -> str:
    # A part of both halves: the model, and what is asked of it.
    return f"{service}-{MEASUREMENT}-{key[:3]}{key[6:9]}"
