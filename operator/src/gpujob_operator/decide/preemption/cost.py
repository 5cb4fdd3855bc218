"""GPU-seconds that are lost when a job is interrupted."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds


def interruption_gpu_seconds(
    job: GPUJob, configuration: Configuration, now_age: float, *, asked: bool = True
) -> float:
    """What interrupting the job loses: work since its last checkpoint or, where it can save within
    its grace, the time to write one, and the restart; times its GPUs.

    `now_age` is how long the attempt has run, in seconds. Who is not `asked` cannot save.
    """
    gpus = job.spec.workers * job.spec.gpus_per_worker
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
