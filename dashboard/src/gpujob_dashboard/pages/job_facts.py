"""Facts of a job that several pages show."""

from gpujob_api.gpujob import GPUJob


def job_link(job: GPUJob) -> str:
    return f"/job/{job.metadata.namespace}/{job.metadata.name}"


def percent(job: GPUJob) -> float | None:
    """Returns the share of the job's steps that are done, or None if it does not report it."""
    measured = job.status.measurement
    if measured is None or not measured.steps_total:
        return None
    return min(100 * measured.step / measured.steps_total, 100.0)
