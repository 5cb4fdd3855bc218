"""Decides which part of a job's next status is written, and when.

It sets the conditions that every status has, and limits how often figures are updated.
"""

from dataclasses import fields
from datetime import datetime
from operator import attrgetter

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.settings import TunedSettings
from gpujob_operator.decide.capacity.sites import gpus_at
from gpujob_operator.decide.lifecycle import faults
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.printer_columns import summarize
from gpujob_operator.decide.measurement.slowdown import slowed_because, yielding_message
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.protection import (
    Unprotected,
    unprotected_message,
    why_unprotected,
)
from gpujob_operator.decide.model.starts import without_range

# Figures that change while a job runs, and conditions that change with them.
_LIVE_FIGURES = (
    "measurement",
    "tuned",
    "checkpoint",
    "protection",
    "tuning_seconds",
    "progressed_at",
    "observed_at",
    "explain",
    "summary",
    "conditions",
)
_NOTHING_TUNED = TunedSettings()
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
    """Returns the status with the parts that every status has, in any phase.

    `inputs` must have the sites of this status.
    """
    writer, sites = ConditionWriter(job, status, now), inputs.sites
    writer.set(conditions.ACCEPTED, True, "Valid", "the spec is valid")
    if conditions.find(writer, conditions.SUCCEEDED) is None:
        writer.set(conditions.SUCCEEDED, None, "InProgress", "not finished yet")
    _set_suspension(job, status, writer)
    _set_reachability(
        status, writer, faults.unreachable(sites, configuration, now), faults.gone(sites)
    )
    gpu = faults.pressure(status, sites)
    if gpu is not None:
        writer.set(conditions.GPU_PRESSURE, True, "GPUOvercommitted", faults.pressure_message(gpu))
    elif conditions.find(writer, conditions.GPU_PRESSURE) is not None:
        writer.set(conditions.GPU_PRESSURE, False, "Fits", "the GPU has enough memory again")
    _set_slowdown(job, status, writer, inputs)
    _set_yielding(status, writer, inputs)
    _set_protection(job, status, writer, inputs, configuration)
    if status.placement is None or status.finished:
        writer.remove(conditions.EDIT_REJECTED)
    start = without_range(job, writer.status())
    generation, summary = (
        job.metadata.generation,
        summarize(job, status, writer, sites, inputs.report),
    )
    if (generation, summary, start) == (status.observed_generation, status.summary, status.start):
        return writer.status()
    return writer.status(observed_generation=generation, summary=summary, start=start)


def _set_slowdown(
    job: GPUJob, status: GPUJobStatus, writer: ConditionWriter, inputs: JobInputs
) -> None:
    gpus = gpus_at(inputs.sites)
    slowed = slowed_because(job, status, inputs.profile, gpus, inputs.yielding)
    if slowed is not None:
        writer.set(conditions.SLOWED, True, *slowed)
    elif conditions.find(writer, conditions.SLOWED) is not None:
        writer.set(conditions.SLOWED, False, "WithinLimit", "no longer")


def _set_yielding(status: GPUJobStatus, writer: ConditionWriter, inputs: JobInputs) -> None:
    yielding = inputs.yielding if status.phase is JobPhase.RUNNING else None
    if yielding is not None:
        writer.set(conditions.YIELDING, True, "ServiceLatency", yielding_message(yielding))
    elif conditions.find(writer, conditions.YIELDING) is not None:
        writer.set(conditions.YIELDING, False, "Ended", "no longer")


def _set_protection(
    job: GPUJob,
    status: GPUJobStatus,
    writer: ConditionWriter,
    inputs: JobInputs,
    configuration: Configuration,
) -> None:
    """Sets the condition from the first attempt to the end.

    A pending job has nothing to lose, and there may be ten thousand pending jobs.
    """
    why = None
    if status.attempt and not status.finished:
        why = why_unprotected(job, configuration, status.protection)
    if why is None:
        writer.remove(conditions.UNPROTECTED)
        return
    received = inputs.report
    reason = ""
    if why is Unprotected.NOT_RESUMABLE:
        reason = received.report.protection_reason or "" if received is not None else ""
        known = conditions.find(writer, conditions.UNPROTECTED)
        if not reason and known is not None and known.reason == why.value:
            return
    text = unprotected_message(job, why, reason)
    writer.set(conditions.UNPROTECTED, True, why.value, text)


def _set_suspension(job: GPUJob, status: GPUJobStatus, writer: ConditionWriter) -> None:
    """Sets the condition once all of the job's pods have ended, because its GPUs are free then."""
    if job.spec.suspend and status.placement is None and not status.finished:
        writer.set(conditions.SUSPENDED, True, "Suspended", "spec.suspend is true")
    elif conditions.find(writer, conditions.SUSPENDED) is not None and not job.spec.suspend:
        writer.set(conditions.SUSPENDED, False, "Resumed", "spec.suspend is false")


def _set_reachability(
    status: GPUJobStatus, writer: ConditionWriter, message: str, gone: str
) -> None:
    """Sets the condition. `message` is about a silent node, `gone` about a removed one,
    "" if none.
    """
    if status.phase is not JobPhase.RUNNING or status.placement is None:
        return
    running = conditions.find(writer, conditions.RUNNING)
    if message:
        writer.set(conditions.RUNNING, None, "NodeUnreachable", message)
    elif running is None or running.reason not in ("NodeUnreachable", "NodeGone"):
        return
    elif gone:
        writer.set(conditions.RUNNING, None, "NodeGone", gone)
    else:
        writer.set(conditions.RUNNING, True, "WorkersRunning", "its node is back")


def needs_write(
    job: GPUJob, status: GPUJobStatus, configuration: Configuration, now: datetime
) -> bool:
    """Returns True at once after an event, and at a bounded rate if only figures changed."""
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
    """Returns the status without the figures that change all the time.

    The first measurement is such a figure. The reservation that follows from it is not.
    """
    findings = tuple((c.type, c.status, c.reason, c.observed_generation) for c in status.conditions)
    # A worker that has not tuned anything reports this in its first report.
    tuned = None if status.tuned == _NOTHING_TUNED else status.tuned
    return _UNCHANGED_FIELDS(status), findings, tuned, status.checkpoint is not None
