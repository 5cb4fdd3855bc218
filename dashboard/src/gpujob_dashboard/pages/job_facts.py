"""Facts of a job that several pages show."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model.conditions import HasConditions, find


def job_link(job: GPUJob) -> str:
    return f"/job/{job.metadata.namespace}/{job.metadata.name}"


def holds(job: GPUJob) -> bool:
    """Returns whether the job has GPUs."""
    return job.status.placement is not None and not job.finished


def waits(job: GPUJob) -> bool:
    return not job.finished and not holds(job) and not job.spec.suspend


def is_true(status: HasConditions, kind: str) -> bool:
    found = find(status, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def percent(job: GPUJob) -> float | None:
    """Returns the share of the job's steps that are done, or None if it does not report it."""
    measured = job.status.measurement
    if measured is None or not measured.steps_total:
        return None
    return min(100 * measured.step / measured.steps_total, 100.0)
