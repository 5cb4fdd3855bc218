"""Events of a running attempt that a person looks for: what it was tuned to, from which step it
goes on, that a checkpoint is saved. Each is said once, with the write that shows it.
"""

from collections.abc import Iterator

from gpujob_api.gpujob import GPUJobStatus
from gpujob_api.quantities import format_memory
from gpujob_api.report import CheckpointReport, Report
from gpujob_api.settings import TunedSettings
from gpujob_operator.decide.model.plan import EventNote


def milestones(
    before: GPUJobStatus, after: GPUJobStatus, report: Report | None
) -> tuple[EventNote, ...]:
    """What the attempt reached since the status was last written."""
    return tuple(_milestones(before, after, report))


def _milestones(
    before: GPUJobStatus, after: GPUJobStatus, report: Report | None
) -> Iterator[EventNote]:
    step = after.resumed_from_step
    if step is not None and before.resumed_from_step is None:
        yield EventNote("Resumed", f"attempt {after.attempt} resumes after step {step}")
    if after.tuned is not None and after.tuned != before.tuned:
        text = _tuned(before.tuned, after.tuned, report)
        if text:
            yield EventNote("Tuned", text)
    if after.checkpoint is not None and _is_first(before, after.checkpoint):
        yield EventNote("CheckpointCommitted", _saved(after, after.checkpoint))


def _tuned(before: TunedSettings | None, after: TunedSettings, report: Report | None) -> str:
    words = ", ".join(after.in_words().values())
    if not words:
        was = before.in_words() if before is not None else {}
        return "the settings are taken back; the script runs as written" if was else ""
    gain = report.speedup if report is not None and report.tuned == after else None
    if gain is None:
        return f"runs with {words}"
    return (
        f"runs with {words}: a step is {gain.ratio:.2f} times as fast "
        f"(95 % {gain.low:.2f} to {gain.high:.2f}, {gain.pairs} pairs)"
    )


def _is_first(before: GPUJobStatus, saved: CheckpointReport) -> bool:
    """True for the attempt's first one; a checkpoint that it resumes from is an earlier one's."""
    known = before.checkpoint.step if before.checkpoint is not None else 0
    return saved.step > known and known <= (before.resumed_from_step or 0)


def _saved(status: GPUJobStatus, saved: CheckpointReport) -> str:
    size = f", {format_memory(saved.bytes)}" if saved.bytes else ""
    took = f" in {saved.write_seconds:.1f} s" if saved.write_seconds else ""
    return f"attempt {status.attempt} saved its first checkpoint at step {saved.step}{size}{took}"
