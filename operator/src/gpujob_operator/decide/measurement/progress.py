"""Updates the status of a running attempt from its measurements: speed, memory, reservation."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.copies import changed
from gpujob_api.gpujob import (
    GPUJob,
    GPUJobStatus,
    Measurement,
    Reservation,
    ReservationSource,
)
from gpujob_api.quantities import GIB, format_count, format_memory
from gpujob_api.report import CheckpointReport, Report, WorkerPhase
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.reservation import measured_reservation
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES, known_context_bytes
from gpujob_operator.decide.model.plan import EventNote
from gpujob_operator.decide.model.protection import why_unprotected
from gpujob_operator.decide.model.settling import has_settled
from gpujob_operator.decide.model.snapshot import GPUUsage, ReceivedReport

# A worker's peak counts up to this much above what the agent saw. The larger of the two limits
# applies.
UNSEEN_PEAK_FRACTION_MAX = 0.25
UNSEEN_PEAK_BYTES_MAX = GIB
# How many times as long an attempt may make no progress before its first and after its last step.
HANG_TIMES_WITHOUT_STEPS = 6


def with_report(
    job: GPUJob,
    status: GPUJobStatus,
    received: ReceivedReport | None,
    configuration: Configuration,
) -> GPUJobStatus:
    """Returns the status with the last report of rank 0. Reports of another attempt are ignored."""
    if received is None or received.report.attempt != status.attempt:
        return status
    report = received.report
    # A new attempt starts before the step that the last one reached, and still makes progress.
    moved = status.measurement is None or report.step not in (0, status.measurement.step)
    busy = report.phase is not WorkerPhase.TRAINING and not _answers_nothing(report)
    resumed = _resumed_from(job, status, report)
    return changed(
        status,
        tuned=report.tuned or status.tuned,
        tuning_seconds=(
            status.tuning_seconds if report.tuning_seconds is None else report.tuning_seconds
        ),
        checkpoint=_durable(
            job, report, configuration, began_again=resumed == 0 != status.resumed_from_step
        ),
        protection=report.protection or status.protection,
        resumed_from_step=resumed,
        explain=report.explain or status.explain,
        progressed_at=received.received_at if moved or busy else _last_sign(status, received),
    )


def _last_sign(status: GPUJobStatus, received: ReceivedReport) -> datetime | None:
    """Returns when the worker last did anything, such as a batch of an evaluation."""
    before, idle_seconds = status.progressed_at, received.report.idle_seconds
    if idle_seconds is None:
        return before
    seen_at = received.received_at - timedelta(seconds=idle_seconds)
    return seen_at if before is None else max(before, seen_at)


def _answers_nothing(report: Report) -> bool:
    """Returns whether requests wait in a serving process. It makes progress only if it answers
    them. Without requests there is nothing to do.
    """
    return report.serving is not None and report.serving.queued > 0


def _resumed_from(job: GPUJob, status: GPUJobStatus, report: Report) -> int | None:
    """Returns the step from which the attempt resumes.

    It is 0 once it is known that a later attempt starts from the beginning. A script that resumes
    from its own checkpoints also counts its steps from 0.
    """
    if report.resume_refused is not None:
        return 0
    if report.resumed_from_step is not None:
        return report.resumed_from_step
    again = report.attempt > 1 and report.step > 0 and job.spec.checkpoint.path is None
    return 0 if again and status.resumed_from_step is None else status.resumed_from_step


def _durable(
    job: GPUJob, report: Report, configuration: Configuration, *, began_again: bool
) -> CheckpointReport | None:
    """Returns the newest checkpoint from which the next attempt can resume.

    The durable step never goes back, whatever a report contains (I6), except if the attempt itself
    began again before it.
    """
    if why_unprotected(job, configuration, report.protection) is not None:
        return None
    saved, known, refused = report.checkpoint, job.status.checkpoint, report.resume_refused
    if saved is not None and refused is not None and saved.step == refused.step:
        saved = None
    if began_again:
        return saved if saved is not None and saved.step <= report.step else None
    if saved is None or known is None:
        return saved or known
    return max(saved, known, key=lambda checkpoint: checkpoint.step)


def with_measurement(
    status: GPUJobStatus, report: Report | None, usage: GPUUsage | None
) -> GPUJobStatus:
    """Returns the status with the agent's readings from outside and the worker's report from
    inside.
    """
    if usage is None or usage.samples == 0:
        return _with_steps(status, report)
    before = status.measurement
    # The GPU model of the peak is also known for a job without reports.
    model = status.placement.gpu_model if status.placement is not None else ""
    utilization_percent = round(usage.utilization_percent, 1)
    if before is None:
        measurement = Measurement(
            usage.memory_peak_bytes,
            utilization_percent,
            usage.samples,
            device=model,
            context_bytes=_of_several(usage.context_bytes),
        )
    else:
        grown = usage.memory_peak_bytes > before.memory_bytes
        measurement = replace(
            before,
            memory_bytes=max(usage.memory_peak_bytes, before.memory_bytes),
            utilization_percent=utilization_percent,
            samples=max(usage.samples, before.samples),
            device=model if grown else before.device,
            context_bytes=_of_several(max(usage.context_bytes, known_context_bytes(before))),
        )
    return _with_steps(changed(status, measurement=measurement), report)


def _of_several(contexts_bytes: int) -> int | None:
    """Returns None for the context of one process, which is the default."""
    return contexts_bytes if contexts_bytes > CONTEXT_BYTES else None


def _with_steps(status: GPUJobStatus, report: Report | None) -> GPUJobStatus:
    if status.measurement is None or report is None or report.attempt != status.attempt:
        return status
    before = status.measurement
    measurement = replace(
        before,
        task=report.task if report.step else before.task,
        step=report.step or before.step,
        steps_total=report.steps_total or _known_total(before, report),
        loss=before.loss if report.loss is None else report.loss,
        baseline=report.baseline or before.baseline,
        current=report.current or before.current,
        speedup=report.speedup,
        data_wait_percent=(
            before.data_wait_percent
            if report.data_wait_percent is None
            else report.data_wait_percent
        ),
        joules_per_step=(
            before.joules_per_step
            if report.efficiency is None or report.efficiency.joules_per_step is None
            else report.efficiency.joules_per_step
        ),
        device=report.device or before.device,
        # The first reported version is kept. A worker that reports another one each time would
        # write as many profiles.
        torch_version=before.torch_version or report.torch_version,
    )
    return changed(status, measurement=measurement)


def _known_total(before: Measurement, report: Report) -> int | None:
    """Returns the total of earlier reports. After more calls, it was that of a loop which has
    ended.
    """
    total = before.steps_total
    has_ended = report.task is Task.INFERENCE and total is not None and report.step > total
    return None if has_ended else total


def with_measured_reservation(
    job: GPUJob,
    status: GPUJobStatus,
    report: Report | None,
    usage: GPUUsage | None,
    configuration: Configuration,
    most_bytes: Callable[[], int],
) -> tuple[GPUJobStatus, tuple[EventNote, ...]]:
    """Returns the status with the measured reservation, once the worker's use has settled.

    `most_bytes` returns the most that the job can reserve on its GPUs.
    """
    held = status.reservation
    if usage is None or held is None or not _settled(report, usage, configuration):
        return status, ()
    if _may_run_out_again(status, report):
        return status, ()
    wanted = measured_reservation(replace(job, status=status), usage, configuration, most_bytes)
    if wanted is None:
        return status, ()
    after, before = format_memory(wanted.memory_bytes), format_memory(held.memory_bytes)
    status = changed(status, reservation=wanted)
    if after == before:
        return status, ()  # The difference would not be visible.
    text = (
        f"measured a peak of {format_memory(usage.memory_peak_bytes)} and "
        f"{usage.utilization_percent:.0f} % utilization "
        f"({format_count(usage.samples, 'reading')}); "
        f"reserves {after} instead of {before} ({_source(held.source)})"
    )
    return status, (EventNote("ReservationMeasured", text),)


def joined_usage(
    usage: GPUUsage | None,
    report: Report | None,
    held: Reservation | None,
    *,
    is_yielding: bool = False,
) -> GPUUsage | None:
    """Returns the agent's readings with the peak that the worker saw between two of them.

    While the job yields, its utilization does not fall below the reserved one. Otherwise another
    job would get the time that is meant for a service.

    The worker's figure counts up to a bound above the agent's own peak. A worker that holds whole
    GPUs may report up to what it holds. A wrong figure therefore takes no memory from other jobs.
    """
    timing = report.current if report is not None else None
    if usage is not None and held is not None and is_yielding:
        utilization_percent = max(usage.utilization_percent, held.utilization_percent)
        usage = replace(usage, utilization_percent=utilization_percent)
    if usage is None or timing is None:
        return usage
    seen_bytes = usage.memory_peak_bytes
    believed_bytes = seen_bytes + max(
        int(seen_bytes * UNSEEN_PEAK_FRACTION_MAX), UNSEEN_PEAK_BYTES_MAX
    )
    if held is not None and held.source is ReservationSource.WHOLE_GPU:
        believed_bytes = max(believed_bytes, held.memory_bytes)
    peak_bytes = max(seen_bytes, min(timing.peak_memory_bytes, believed_bytes))
    return replace(usage, memory_peak_bytes=peak_bytes)


def _may_run_out_again(status: GPUJobStatus, report: Report | None) -> bool:
    """Returns whether the attempt has not yet passed the step at which an earlier one ran out of
    memory.

    Its peak is still to come until then. A worker that reports no step never passes it.
    """
    at_step = status.out_of_memory_step
    return at_step is not None and (report is None or report.step <= at_step)


def _settled(report: Report | None, usage: GPUUsage, configuration: Configuration) -> bool:
    """Returns whether the measurement can be trusted.

    A worker that does not report (another framework) needs more readings. A server reports no peak
    of its own, so readings from before it was ready do not count.
    """
    if report is None:
        return usage.samples >= configuration.measurement_samples_without_reports_min
    return has_settled(report) and not (report.current is None and usage.is_of_start_up)


def _source(source: ReservationSource) -> str:
    return {
        ReservationSource.WHOLE_GPU: "whole GPU",
        ReservationSource.HINT: "hint",
        ReservationSource.PROFILE: "profile",
        ReservationSource.MEASURED: "earlier measurement",
        ReservationSource.PARKED: "parked",
    }[source]


def hang_limit_seconds(job: GPUJob, received: ReceivedReport | None) -> int:
    """Returns for how long the attempt may make no progress.

    A worker reports nothing while its script downloads or prepares data before the first step, or
    evaluates and uploads after the last one, so it has more time then.
    """
    if received is not None and received.report.attempt == job.status.attempt:
        trains = not is_past_last_step(received.report)
    else:
        trains = _has_progressed(job.status)
    limit_seconds = job.spec.retry.hang_timeout_seconds
    return limit_seconds if trains else HANG_TIMES_WITHOUT_STEPS * limit_seconds


def is_past_last_step(report: Report) -> bool:
    total = report.steps_total
    return total is not None and report.step >= total > 0


def _has_progressed(status: GPUJobStatus) -> bool:
    """Returns whether a report of this attempt was received, by the status."""
    running = conditions.find(status, conditions.RUNNING)
    if running is None or status.progressed_at is None:
        return False
    return status.progressed_at > running.last_transition_time


def is_hung(
    status: GPUJobStatus,
    timeout_seconds: int,
    now: datetime,
    listening_since: datetime | None = None,
) -> float | None:
    """Returns the seconds without progress if they exceed the limit, else None.

    Only time during which this process received reports counts. It begins at 0 after a start of the
    operator.
    """
    since = status.progressed_at or status.attempt_started_at
    if since is None:
        return None
    if listening_since is not None:
        since = max(since, listening_since)
    idle_seconds = (now - since).total_seconds()
    return idle_seconds if idle_seconds > timeout_seconds else None
