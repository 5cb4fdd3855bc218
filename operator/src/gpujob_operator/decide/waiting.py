"""How long a job has waited, and what it was told last."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodView


@dataclass(frozen=True, slots=True)
class Told:
    """What a waiting job was told. Until then, the same again is not worth a write."""

    reason: str
    until: datetime
    # From when on the job may keep cards from later ones.
    patience_at: datetime


def told_of(job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration) -> Told | None:
    """None where the job was told nothing yet, or may wait for something of its own."""
    status, since = job.status, _since(job)
    finding = conditions.find(status, conditions.SCHEDULED)
    told = status.observed_at
    if finding is None or told is None or since is None:
        return None
    if job.spec.suspend or status.observed_generation != job.metadata.generation:
        return None
    if any(not pod.finished for pod in pods):
        return None
    if status.next_attempt_at is not None and status.next_attempt_at > told:
        return None
    return Told(
        finding.reason,
        told + timedelta(seconds=configuration.pending_write_seconds),
        since + timedelta(seconds=configuration.claim_after_seconds),
    )


def waited_seconds(job: GPUJob, now: datetime) -> float:
    return (now - (_since(job) or now)).total_seconds()


def _since(job: GPUJob) -> datetime | None:
    status = job.status
    return status.next_attempt_at or status.requeued_at or job.metadata.creation_timestamp


def told_lately(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    told = job.status.observed_at
    if told is None or job.status.observed_generation != job.metadata.generation:
        return False
    return (now - told).total_seconds() < configuration.pending_write_seconds
