"""Decides whose fault it is that a job ran out of GPU memory."""

from collections.abc import Iterable
from dataclasses import replace

from gpujob_api.gpujob import GPUJob, JobFailure
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.sites import Sites, WorkerSite, gpus_at
from gpujob_operator.decide.lifecycle.faults import pressure_message
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.model.configuration import DeviceAccess
from gpujob_operator.decide.model.held_gpus import (
    EXTERNAL_NOISE_BYTES,
    known_context_bytes,
    memory_cap_bytes,
)
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.stop_reasons import rule_of


def without_others_faults(
    job: GPUJob, outcome: Outcome, pods: Iterable[PodView], sites: Sites, access: DeviceAccess
) -> Outcome:
    """Returns the outcome, changed to an interruption if others took memory that the job was given.

    `job` has the measurement of its last report. The next attempt nevertheless begins on a whole
    GPU (`ran_out_of_memory`), where a job that runs out of memory has only itself to blame.
    Readings come too late for this decision if a device plugin picks the GPUs.
    """
    failure = outcome.failure
    ran_out = failure is not None and failure.failure_class is FailureClass.OUT_OF_MEMORY
    if failure is None or not ran_out or rule_of(job.status.stop).failure is not None:
        return outcome
    failed = [pod for pod in pods if _reports_it(pod)]
    theirs = [sites[pod.rank] for pod in failed if pod.rank < len(sites)]
    theirs = [site for site in theirs if not _is_stale(site)]
    full = next((gpu for gpu in gpus_at(tuple(theirs)) if _lacks_memory(gpu)), None)
    picked = access is DeviceAccess.DEVICE_PLUGIN
    if full is None or picked or not _kept_to_its_own(job, failed):
        return outcome
    text = f"{failure.message}; not counted, because others took its memory: "
    excused = JobFailure(failure.failure_class, text + pressure_message(full))
    return replace(outcome, end=AttemptEnd.INTERRUPTED, failure=excused, error="")


def _is_stale(site: WorkerSite) -> bool:
    closed = site.facts.closed if site.facts is not None else None
    return closed is not None and closed.stale


def _lacks_memory(gpu: GPUCapacity) -> bool:
    """Returns whether there is clearly less memory than was given.

    The last reading may still show the job's own pod, which has ended.
    """
    left_bytes = gpu.free_bytes + gpu.terminating_bytes
    return left_bytes < -EXTERNAL_NOISE_BYTES


def _reports_it(pod: PodView) -> bool:
    words = pod.termination
    failure = words.failure if words is not None else None
    return failure is not None and failure.failure_class is FailureClass.OUT_OF_MEMORY


def _kept_to_its_own(job: GPUJob, failed: Iterable[PodView]) -> bool:
    """Returns whether the job stayed within its memory, by measurement and by the
    workers' reports.
    """
    held, measured = job.status.reservation, job.status.measurement
    if held is None:
        return False
    reports = [pod.termination.failure for pod in failed if pod.termination is not None]
    needed = [one.needed_bytes or 0 for one in reports if one is not None]
    known_bytes = max([measured.memory_bytes if measured is not None else 0, *needed])
    cap_bytes = memory_cap_bytes(job)
    own_bytes = held.memory_bytes if cap_bytes is None else cap_bytes
    return known_bytes <= own_bytes + known_context_bytes(measured)
