"""The printer columns of a job: placement, progress, speed, memory, cost and reason."""

from collections.abc import Iterator

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, ReservationSource
from gpujob_api.meta import ConditionStatus
from gpujob_api.quantities import format_duration, format_memory, format_seconds
from gpujob_api.report import WorkerPhase
from gpujob_api.settings import OptimizeMode
from gpujob_api.summary import STANDS_STILL, Summary
from gpujob_operator.decide.capacity.sites import Sites
from gpujob_operator.decide.lifecycle.cost import cost_text
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import HasConditions
from gpujob_operator.decide.model.snapshot import ReceivedReport

REASON_CHARACTERS_MAX = 200
# The reason while pods start normally, which is not shown.
_ORDINARY = "Starting"
# The condition whose reason is shown, for phases in which it is not `Running`.
_SHOWN_CONDITION = {
    JobPhase.PENDING: conditions.SCHEDULED,
    JobPhase.SUCCEEDED: conditions.SUCCEEDED,
    JobPhase.FAILED: conditions.SUCCEEDED,
}


def summarize(
    job: GPUJob,
    status: GPUJobStatus,
    stated: HasConditions,
    sites: Sites,
    received: ReceivedReport | None = None,
) -> Summary:
    """Returns the columns of a job with this status and these conditions.

    `received` is the newest report.
    """
    return Summary(
        where=_where(status),
        progress=", ".join(filter(None, _progress_parts(status, stated, received))),
        eta=_eta(status),
        speed=_speed(job, status),
        memory=_memory(status),
        cost=cost_text(job, status, sites),
        reason=_reason(status.phase, stated),
    )


def _where(status: GPUJobStatus) -> str:
    if status.placement is None:
        return ""
    first, *others = status.placement.workers
    more = f" +{len(others)}" if others else ""
    gpus = ",".join(uuid[:12] for uuid in first.gpus[:2])
    gpus += ",..." if len(first.gpus) > 2 else ""
    return f"{first.node}/{gpus}{more}"


def _progress_parts(
    status: GPUJobStatus, stated: HasConditions, received: ReceivedReport | None
) -> Iterator[str]:
    hindrance = _hindrance(status.phase, stated)
    yield _progress(status, stated, with_total=not hindrance or status.phase is JobPhase.RUNNING)
    yield hindrance
    yield _standstill(status, received)


def _hindrance(phase: JobPhase, stated: HasConditions) -> str:
    """Returns one word why the job does not run, or that it runs untuned.

    The default table has no other column for it.
    """
    found = conditions.find(stated, _SHOWN_CONDITION.get(phase, conditions.RUNNING))
    holds = found is None or found.status is ConditionStatus.TRUE
    if found is not None and not holds and found.reason != _ORDINARY:
        return found.reason
    return "untuned" if _is_true(stated, conditions.UNTUNED) else ""


def _is_true(stated: HasConditions, kind: str) -> bool:
    found = conditions.find(stated, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def _progress(status: GPUJobStatus, stated: HasConditions, *, with_total: bool) -> str:
    """Returns the progress of the newest attempt, as reported by rank 0: 12300/100000 12%, or
    1200 calls.

    The total is left out if the column needs the room for why the job does not run.
    """
    measured = status.measurement
    if measured is None or not measured.step:
        return ""
    lost = " unprotected" if conditions.find(stated, conditions.UNPROTECTED) is not None else ""
    total = measured.steps_total
    if not total or not with_total:
        return f"{measured.progress}{lost}"
    calls = " calls" if measured.counts_calls else ""
    return f"{measured.step}/{total}{calls} {min(100, 100 * measured.step // total)}%{lost}"


def _standstill(status: GPUJobStatus, received: ReceivedReport | None) -> str:
    """Returns that training pauses for trials, so that a pause of a minute is not taken
    for a hang.
    """
    if received is None or received.report.attempt != status.attempt:
        return ""
    tuning = received.report.phase is WorkerPhase.TUNING and received.report.step > 0
    return STANDS_STILL if tuning and status.phase is JobPhase.RUNNING else ""


def _eta(status: GPUJobStatus) -> str:
    measured = status.measurement
    if status.phase is not JobPhase.RUNNING or measured is None:
        return ""
    left_seconds = measured.remaining_seconds
    return "" if left_seconds is None else format_duration(left_seconds)


def _speed(job: GPUJob, status: GPUJobStatus) -> str:
    """Returns the step time.

    A factor is added only if it was measured in alternation, for settings that may be applied.
    """
    measured = status.measurement
    if measured is None or measured.current is None:
        return measured.progress if measured is not None and measured.step else ""
    of = "call" if measured.counts_calls else "step"
    text = f"{format_seconds(measured.current.step_seconds)}/{of}"
    gain = measured.speedup
    if gain is not None and job.spec.optimize.mode is OptimizeMode.AUTO:
        text += f", {gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
    return text


def _memory(status: GPUJobStatus) -> str:
    if status.reservation is None:
        return format_memory(status.measurement.memory_bytes) if status.measurement else ""
    held = format_memory(status.reservation.memory_bytes)
    if status.reservation.source is ReservationSource.PARKED:
        # The measured peak is that of the time before.
        return f"parked, {held}"
    if status.measurement is None:
        return f"? of {held}"
    return f"{format_memory(status.measurement.memory_bytes)} of {held}"


def _reason(phase: JobPhase, stated: HasConditions) -> str:
    found = conditions.find(stated, _SHOWN_CONDITION.get(phase, conditions.RUNNING))
    if found is None:
        return ""
    text = f"{found.reason}: {found.message}" if found.message else found.reason
    return text[:REASON_CHARACTERS_MAX]
