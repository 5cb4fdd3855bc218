"""How long an attempt may take to start."""

from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodPhase, PodView


def age_seconds(job: GPUJob, now: datetime) -> float:
    """Age of the attempt in seconds."""
    started = job.status.attempt_started_at or now
    return (now - started).total_seconds()


def start_seconds_left(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration, now: datetime
) -> float:
    """How long the attempt may still take to start. What pulling images takes is not counted: the
    time begins again whenever one of its containers has started or ended."""
    present = {pod.rank for pod in pods}
    pending = any(pod.phase is PodPhase.PENDING for pod in pods)
    if len(present) == job.spec.workers and not pending:
        # It has started.
        return configuration.start_timeout_seconds
    if any(pod.pulls_images for pod in pods):
        return pull_limit_seconds(configuration) - age_seconds(job, now)
    # A kubelet's clock may be ahead, and the attempt would then never be too late.
    moments = [at for pod in pods if (at := pod.last_change_at) is not None and at <= now]
    since = max([job.status.attempt_started_at or now, *moments])
    return configuration.start_timeout_seconds - (now - since).total_seconds()


def pull_limit_seconds(configuration: Configuration) -> float:
    """For an attempt whose images are being pulled."""
    return max(configuration.image_pull_timeout_seconds, configuration.start_timeout_seconds)
