"""Events of a running attempt that users look for.

They are the settings to which it was tuned, the step from which it resumes, and a checkpoint that
was saved or refused. Each is posted once, with the write that shows it.
"""

from collections.abc import Iterator

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.quantities import format_count, format_memory, format_seconds
from gpujob_api.report import CheckpointReport, Report, WorkerPhase
from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_api.summary import STANDS_STILL
from gpujob_operator.decide.measurement.slowdown import yielding_message
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import EventNote, EventType
from gpujob_operator.decide.model.protection import (
    RESUME_REFUSED,
    Unprotected,
    durable_checkpoint,
    why_unprotected,
)
from gpujob_operator.decide.model.services import replica_id
from gpujob_operator.decide.model.snapshot import Yielding

# Steps after the checkpoint of a stop, by which the next attempt checks its resume.
_CHECKED_STEPS_MAX = 3


def milestones(
    before: GPUJobStatus,
    after: GPUJobStatus,
    report: Report | None,
    mode: OptimizeMode = OptimizeMode.AUTO,
) -> tuple[EventNote, ...]:
    """Returns what the attempt reached since the status was last written. `mode` is the
    attempt's.
    """
    return tuple(_milestones(before, after, report, mode))


def _milestones(
    before: GPUJobStatus, after: GPUJobStatus, report: Report | None, mode: OptimizeMode
) -> Iterator[EventNote]:
    yield from refusal(before, after, report)
    step = after.resumed_from_step
    if step is not None and before.resumed_from_step is None:
        if step:
            yield EventNote("Resumed", f"attempt {after.attempt} resumes after step {step}")
        elif lost := _steps_made(before):
            text = f"attempt {after.attempt} starts from the beginning; {_steps_lost(lost)}"
            yield EventNote("RestartedFromBeginning", text, EventType.WARNING)
    if _begins_to_tune(before, after, report):
        yield EventNote(
            "Tuning",
            f"attempt {after.attempt} tries settings; training stands still meanwhile, for about "
            "2 % of the run, 12 to 120 s (optimize.mode: Off leaves it out)",
        )
    if after.tuned is not None and after.tuned != before.tuned:
        if mode is OptimizeMode.AUTO:
            reason, text = "Tuned", _tuned(before.tuned, after.tuned, report)
        else:
            reason, text = "Recommends", _recommended(before.tuned, after.tuned)
        if text:
            yield EventNote(reason, text)
    if after.checkpoint is not None and _is_first(before, after.checkpoint):
        yield EventNote("CheckpointCommitted", _saved(after, after.checkpoint))


def refusal(
    before: GPUJobStatus, after: GPUJobStatus, report: Report | None
) -> tuple[EventNote, ...]:
    """Returns an event if the attempt found that its checkpoint does not bring the run back."""
    refused = report.resume_refused if report is not None else None
    if refused is None or after.resumed_from_step != 0 or before.resumed_from_step == 0:
        return ()
    text = (
        f"attempt {after.attempt}: the checkpoint of step {refused.step} did not bring the run "
        f"back, so that it starts from the beginning: {refused.reason}"
    )
    return (EventNote(RESUME_REFUSED, text, EventType.WARNING),)


def first_yield(before: GPUJobStatus, yielding: Yielding | None) -> tuple[EventNote, ...]:
    """Returns an event if the job yields to a service for the first time."""
    if yielding is None or conditions.find(before, conditions.YIELDING) is not None:
        return ()
    return (EventNote("YieldsToService", yielding_message(yielding)),)


def after_an_interruption(
    job: GPUJob, configuration: Configuration, *, is_drained: bool = False
) -> str:
    """Returns what the next attempt starts with, and what is lost.

    A replica of a service has nothing to resume. `is_drained`: it answered what it had accepted.
    """
    if replica_id(job) is not None:
        answered = "all accepted requests were answered; " if is_drained else ""
        return f"{answered}its service starts another replica"
    saved = durable_checkpoint(job, configuration)
    if saved is not None:
        return f"checkpoint at step {saved.step} saved{_made_again(job.status, saved.step)}"
    why, path = why_unprotected(job, configuration), job.spec.checkpoint.path
    if why is None and path is not None:
        return f"the script has its own checkpoints ({path[:128]})"
    cause = "not resumable"
    if why is None:
        cause = "no checkpoint"
    elif why is Unprotected.NO_DURABLE_PLACE:
        cause = _no_place(job)
    elif path is not None:
        cause = f"nothing matched checkpoint.path ({path[:128]})"
    text = f"{cause}: the next attempt starts from the beginning"
    # Before an attempt's first report, the figures belong to the attempt before.
    moved = job.status.attempt == 1 or job.status.resumed_from_step is not None
    lost = _steps_made(job.status) if moved else 0
    return f"{text}; {_steps_lost(lost)}" if lost else text


def _made_again(status: GPUJobStatus, saved_step: int) -> str:
    """Returns the steps since the checkpoint. A stop itself leaves a few, by which the resume is
    checked.
    """
    moved = status.attempt == 1 or status.resumed_from_step is not None
    steps = _steps_made(status) - saved_step if moved else 0
    if steps <= _CHECKED_STEPS_MAX:
        return ""
    return f"; {format_count(steps, 'step')} since then are made again"


def _no_place(job: GPUJob) -> str:
    claimed = job.spec.checkpoint.volume_claim_name is not None
    return "checkpoint.path on no persistent volume" if claimed else "no claim"


def _steps_made(status: GPUJobStatus) -> int:
    measured, saved = status.measurement, status.checkpoint
    return (measured.step if measured is not None else 0) or (saved.step if saved else 0)


def _steps_lost(steps: int) -> str:
    return f"{format_count(steps, 'step')} {'is' if steps == 1 else 'are'} lost"


def _recommended(before: TunedSettings | None, after: TunedSettings) -> str:
    """Returns the text for a mode in which nothing is applied, and no speed-up is measured."""
    words = ", ".join(after.in_words().values())
    if words:
        return f"would run with {words}; optimize.mode: Auto applies it from the next attempt on"
    was = before.in_words() if before is not None else {}
    return "no settings are recommended any more" if was else ""


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


def _begins_to_tune(before: GPUJobStatus, after: GPUJobStatus, report: Report | None) -> bool:
    """Returns whether a job that was not tuned yet begins its first trial."""
    if report is None or report.attempt != after.attempt:
        return False
    tries = report.phase is WorkerPhase.TUNING and report.step > 0
    known = before.tuning_seconds is not None or before.summary.progress.endswith(STANDS_STILL)
    return tries and not known


def _is_first(before: GPUJobStatus, saved: CheckpointReport) -> bool:
    """Returns whether this is the attempt's first checkpoint.

    A checkpoint from which it resumes belongs to an earlier attempt.
    """
    known = before.checkpoint.step if before.checkpoint is not None else 0
    return saved.step > known and known <= (before.resumed_from_step or 0)


def _saved(status: GPUJobStatus, saved: CheckpointReport) -> str:
    size = f", {format_memory(saved.bytes)}" if saved.bytes else ""
    took = f" in {format_seconds(saved.write_seconds)}" if saved.write_seconds else ""
    return f"attempt {status.attempt} saved its first checkpoint at step {saved.step}{size}{took}"
