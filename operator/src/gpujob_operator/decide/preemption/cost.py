"""The cost of an interruption, in GPU-seconds."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds


def interruption_gpu_seconds(
    job: GPUJob, configuration: Configuration, now_age: float, *, asked: bool = True
) -> float:
    """The GPU-seconds that an interruption of the job loses, on all its GPUs: the work since its
    last checkpoint (or the time to save one, if it can do so within its grace) and the restart.

    `now_age` is how long the attempt has run, in seconds. A job that is not `asked` cannot save.
    """
    gpus = job.spec.gpus
    lost_seconds = _lost_seconds(job, configuration, now_age, asked=asked)
    return gpus * (lost_seconds + configuration.restart_seconds)


def _lost_seconds(
    job: GPUJob, configuration: Configuration, now_age: float, *, asked: bool
) -> float:
    saved, measured = job.status.checkpoint, job.status.measurement
    if saved is None or measured is None or measured.current is None:
        return now_age
    unsaved_steps = max(measured.step - saved.step, 0)
    unsaved_seconds = min(unsaved_steps * measured.current.step_seconds, now_age)
    if asked and saved.write_seconds <= grace_seconds(job, configuration):
        return min(unsaved_seconds, saved.write_seconds)
    return unsaved_seconds
