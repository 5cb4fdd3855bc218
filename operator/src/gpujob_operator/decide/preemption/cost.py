"""The cost of an interruption, in GPU-seconds."""

from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds
from gpujob_operator.decide.model.protection import durable_checkpoint


def interruption_gpu_seconds(
    job: GPUJob, configuration: Configuration, now: datetime, *, asked: bool = True
) -> float:
    """Returns the GPU-seconds that an interruption of the job loses, on all its GPUs.

    They are the work since its last durable checkpoint, or the time to save one if it can do so
    within its grace, plus the restart. A job that is not `asked` cannot save. An unprotected job
    loses all of its attempt.
    """
    started = job.status.attempt_started_at or now
    age_seconds = max((now - started).total_seconds(), 0.0)
    lost_seconds = _lost_seconds(job, configuration, age_seconds, asked=asked)
    return job.spec.gpus * (lost_seconds + configuration.restart_seconds)


def _lost_seconds(
    job: GPUJob, configuration: Configuration, age_seconds: float, *, asked: bool
) -> float:
    saved, measured = durable_checkpoint(job, configuration), job.status.measurement
    if saved is None or measured is None or measured.current is None:
        return age_seconds
    unsaved_steps = max(measured.step - saved.step, 0)
    unsaved_seconds = min(unsaved_steps * measured.current.step_seconds, age_seconds)
    if asked and saved.write_seconds <= grace_seconds(job, configuration):
        return min(unsaved_seconds, saved.write_seconds)
    return unsaved_seconds
