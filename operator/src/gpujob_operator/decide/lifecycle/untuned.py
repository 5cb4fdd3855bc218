"""The condition `Untuned`: why nothing of a job is tuned, although it is placed and measured."""

from gpujob_api.gpujob import GPUJob, GPUJobStatus, ReservationSource
from gpujob_api.quantities import format_memory
from gpujob_api.report import Report
from gpujob_api.settings import OptimizeMode
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import GPUUsage, ReceivedReport

NO_REPORTS = "NoReports"
NO_STEPS = "NoSteps"
SKIPPED = "Skipped"
# The prefix of the worker's message for a run in which it does nothing.
_EVERYTHING = "everything skipped: "
_CAUSES = (
    "no process of it trains with torch 2.4 or newer (there is none for musl, Alpine's C library) "
    "under Python 3.9 or newer, or its own PYTHONPATH is in the way "
    "(docs/guides/gpujob.md, The image)"
)


def while_it_runs(
    job: GPUJob,
    status: GPUJobStatus,
    received: ReceivedReport | None,
    usage: GPUUsage | None,
    configuration: Configuration,
    writer: ConditionWriter,
) -> None:
    """Sets the condition once there are enough readings without a report.

    The number is that of a measurement from outside. `writer` belongs to this status.
    """
    if (report := _report_of(status, received)) is not None:
        _heed(job, report, writer)
        return
    enough = configuration.measurement_samples_without_reports_min
    if not _asked(job) or _trained(status) or usage is None or usage.samples < enough:
        return
    text = f"not tuned: it does not report: {_CAUSES}{_reserved(status)}"
    writer.set(conditions.UNTUNED, True, NO_REPORTS, text)


def at_the_end(
    job: GPUJob, status: GPUJobStatus, received: ReceivedReport | None, writer: ConditionWriter
) -> None:
    """Sets the condition of a job that has succeeded."""
    if not _asked(job) or _trained(status):
        writer.remove(conditions.UNTUNED)
    elif (report := _report_of(status, received)) is None:
        text = f"not tuned: it did not report: {_CAUSES}"
        writer.set(conditions.UNTUNED, True, NO_REPORTS, text)
    elif words := _why_skipped(report):
        writer.set(conditions.UNTUNED, True, SKIPPED, f"not tuned: {words}")
    elif not report.step:
        text = (
            "not tuned: it ended without a step of an optimizer of torch that the worker saw, and "
            "without three calls of a model"
        )
        writer.set(conditions.UNTUNED, True, NO_STEPS, text)


def _report_of(status: GPUJobStatus, received: ReceivedReport | None) -> Report | None:
    """Returns the report if it belongs to this attempt."""
    if received is None or received.report.attempt != status.attempt:
        return None
    return received.report


def _heed(job: GPUJob, report: Report, writer: ConditionWriter) -> None:
    words = _why_skipped(report)
    if words and _asked(job):
        writer.set(conditions.UNTUNED, True, SKIPPED, f"not tuned: {words}")
    else:
        # A job whose first report came late ends like a job whose report came in time.
        writer.remove(conditions.UNTUNED)


def _why_skipped(report: Report) -> str:
    """Returns why the worker cannot work in this image: too old a torch, a broken package."""
    lines = (line for line in report.explain if line.startswith(_EVERYTHING))
    return next(lines, "").removeprefix(_EVERYTHING)


def _asked(job: GPUJob) -> bool:
    return job.spec.optimize.mode is not OptimizeMode.OFF


def _trained(status: GPUJobStatus) -> bool:
    """Returns whether the job was measured from inside, in this attempt or an earlier one."""
    return status.measurement is not None and status.measurement.current is not None


def _reserved(status: GPUJobStatus) -> str:
    held = status.reservation
    if held is None or held.source is not ReservationSource.MEASURED:
        return ""
    memory = format_memory(held.memory_bytes)
    return (
        f"; measured from outside, it reserves {memory} and "
        f"{held.utilization_percent:.0f} % of each of its GPUs"
    )
