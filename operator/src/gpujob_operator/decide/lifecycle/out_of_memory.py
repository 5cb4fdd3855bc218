"""Whose fault it is that a job ran out of GPU memory."""

from dataclasses import replace

from gpujob_api.gpujob import GPUJob, JobFailure
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.sites import Sites, gpus_at
from gpujob_operator.decide.lifecycle.faults import CONTEXT_BYTES, pressure_message
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.model.stop_reasons import rule_of


def without_others_faults(job: GPUJob, outcome: Outcome, sites: Sites) -> Outcome:
    """The outcome; an interruption where the job ran out of memory that it had been given, because
    somebody else on the GPU took it. `job` has the measurement of its last report.

    The job has a GPU for itself until it has passed this step all the same: whoever runs out of
    memory there has nobody else to blame.
    """
    failure = outcome.failure
    ran_out = failure is not None and failure.failure_class is FailureClass.OUT_OF_MEMORY
    if failure is None or not ran_out or rule_of(job.status.stop).failure is not None:
        return outcome
    full = next((gpu for gpu in gpus_at(sites) if _lacks_memory(gpu)), None)
    if full is None or not _kept_to_its_own(job):
        return outcome
    text = f"{failure.message}; not counted, because others took its memory: "
    excused = JobFailure(failure.failure_class, text + pressure_message(full))
    return replace(outcome, end=AttemptEnd.INTERRUPTED, failure=excused)


def _lacks_memory(gpu: GPUCapacity) -> bool:
    """True where there is less than what was given. The last reading may still show the job's own
    pod, which has ended."""
    return gpu.free_bytes + gpu.terminating_bytes < 0


def _kept_to_its_own(job: GPUJob) -> bool:
    held, measured = job.status.reservation, job.status.measurement
    if held is None:
        return False
    return measured is None or measured.memory_bytes <= held.memory_bytes + CONTEXT_BYTES
