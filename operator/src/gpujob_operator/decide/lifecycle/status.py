"""Decides which part of a job's next status is written, and when: the conditions that every status
has, and the rate at which figures are updated.
"""

from dataclasses import fields
from datetime import datetime
from operator import attrgetter

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_operator.decide.capacity.sites import gpus_at
from gpujob_operator.decide.lifecycle import faults
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.printer_columns import summarize
from gpujob_operator.decide.measurement.slowdown import measured_slowdown
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration

# Figures that change while a job runs, and conditions that change with them.
_LIVE_FIGURES = (
    "measurement",
    "checkpoint",
    "tuning_seconds",
    "progressed_at",
    "observed_at",
    "explain",
    "summary",
    "conditions",
)
_FIELDS = tuple(field.name for field in fields(GPUJobStatus))
_UNCHANGED_FIELDS = attrgetter(*(name for name in _FIELDS if name not in _LIVE_FIGURES))
_FIGURES = attrgetter(*(name for name in _FIELDS if name != "observed_at"))


def finish_status(
    job: GPUJob,
    status: GPUJobStatus,
    inputs: JobInputs,
    configuration: Configuration,
    now: datetime,
) -> GPUJobStatus:
    """The status with the parts that every status has, whatever the phase. `inputs` must have the
    sites of this status.
    """
    writer, sites = ConditionWriter(job, now), inputs.sites
    status = writer.set(status, conditions.ACCEPTED, True, "Valid", "the spec is valid")
    if conditions.find(status, conditions.SUCCEEDED) is None:
        status = writer.set(status, conditions.SUCCEEDED, None, "InProgress", "not finished yet")
    status = _with_suspension(job, status, writer)
    message = faults.unreachable(sites, configuration, now)
    status = _with_reachability(status, writer, message, faults.gone(sites))
    gpu = faults.pressure(status, sites)
    if gpu is not None:
        message = faults.pressure_message(gpu)
        status = writer.set(status, conditions.GPU_PRESSURE, True, "GPUOverfull", message)
    elif conditions.find(status, conditions.GPU_PRESSURE) is not None:
        status = writer.set(
            status, conditions.GPU_PRESSURE, False, "Fits", "the GPU has enough memory again"
        )
    status = _with_slowdown(job, status, writer, inputs)
    generation, summary = job.metadata.generation, summarize(job, status, sites)
    if (generation, summary) == (status.observed_generation, status.summary):
        return status
    return changed(status, observed_generation=generation, summary=summary)


def _with_slowdown(
    job: GPUJob, status: GPUJobStatus, writer: ConditionWriter, inputs: JobInputs
) -> GPUJobStatus:
    running, gpus = status.phase is JobPhase.RUNNING, gpus_at(inputs.sites)
    slowdown = measured_slowdown(job, status, inputs.profile, gpus) if running else None
    if slowdown is not None and slowdown.too_much:
        return writer.set(status, conditions.SLOWED, True, "CoTenants", slowdown.message)
    if conditions.find(status, conditions.SLOWED) is not None:
        return writer.set(status, conditions.SLOWED, False, "WithinLimit", "no longer")
    return status


def _with_suspension(job: GPUJob, status: GPUJobStatus, writer: ConditionWriter) -> GPUJobStatus:
    """The job is suspended once all of its pods have ended, because its GPUs are free then."""
    if job.spec.suspend and status.placement is None and not status.finished:
        return writer.set(status, conditions.SUSPENDED, True, "Suspended", "spec.suspend is true")
    before = conditions.find(status, conditions.SUSPENDED)
    if before is None or job.spec.suspend:
        return status
    return writer.set(status, conditions.SUSPENDED, False, "Resumed", "spec.suspend is false")


def _with_reachability(
    status: GPUJobStatus, writer: ConditionWriter, message: str, gone: str
) -> GPUJobStatus:
    """`message` names the node that does not answer, `gone` the one that is removed; "" if none."""
    if status.phase is not JobPhase.RUNNING or status.placement is None:
        return status
    if message:
        return writer.set(status, conditions.RUNNING, None, "NodeUnreachable", message)
    running = conditions.find(status, conditions.RUNNING)
    if running is None or running.reason not in ("NodeUnreachable", "NodeGone"):
        return status
    if gone:
        return writer.set(status, conditions.RUNNING, None, "NodeGone", gone)
    return writer.set(status, conditions.RUNNING, True, "WorkersRunning", "its node is back")


def needs_write(
    job: GPUJob, status: GPUJobStatus, configuration: Configuration, now: datetime
) -> bool:
    """True at once after an event; at a bounded rate if only figures changed."""
    before = job.status
    if status is before or status == before:
        return False
    if _essence(status) != _essence(before):
        return True
    if _FIGURES(status) == _FIGURES(before):
        return False
    if before.observed_at is None:
        return True
    pending = status.phase is JobPhase.PENDING
    interval_seconds = (
        configuration.pending_write_seconds if pending else configuration.progress_write_seconds
    )
    return (now - before.observed_at).total_seconds() >= interval_seconds


def _essence(status: GPUJobStatus) -> tuple[object, ...]:
    """The status without the figures that change all the time."""
    measured = status.measurement
    timed = measured is not None and measured.current is not None
    findings = tuple((c.type, c.status, c.reason, c.observed_generation) for c in status.conditions)
    return (
        _UNCHANGED_FIELDS(status),
        findings,
        measured is not None,
        timed,
        status.checkpoint is not None,
    )
