"""Conditions of a GPUJob. An unchanged status keeps its transition time."""

from datetime import datetime
from operator import attrgetter

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.meta import MESSAGE_CHARACTERS_MAX, Condition, ConditionStatus
from gpujob_api.visible import visible

ACCEPTED = "Accepted"
SCHEDULED = "Scheduled"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
# True whether the job succeeded or failed.
FINISHED = "Finished"
SUSPENDED = "Suspended"
GPU_PRESSURE = "GPUPressure"
SLOWED = "Slowed"
# True while nothing of the job is tuned because the worker is not in it.
UNTUNED = "Untuned"

_STATUS: dict[bool | None, ConditionStatus] = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}
_TYPE = attrgetter("type")


def find(status: GPUJobStatus, kind: str) -> Condition | None:
    for condition in status.conditions:
        if condition.type == kind:
            return condition
    return None


def with_condition(
    status: GPUJobStatus,
    *,
    kind: str,
    value: bool | None,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> GPUJobStatus:
    """The status with this condition; `value` None means Unknown."""
    wanted = _STATUS[value]
    message = visible(message[:MESSAGE_CHARACTERS_MAX])
    before = find(status, kind)
    said = wanted, reason, message, generation
    if before is not None and said == _said(before):
        # This is the common case for thousands of jobs in every cycle.
        return status
    turned = before is None or before.status is not wanted
    since = now if turned or before is None else before.last_transition_time
    after = Condition(
        type=kind,
        status=wanted,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    conditions = [c for c in status.conditions if c.type != kind]
    conditions.append(after)
    conditions.sort(key=_TYPE)
    return changed(status, conditions=tuple(conditions))


def _said(condition: Condition) -> tuple[object, ...]:
    """The condition without its transition time."""
    return condition.status, condition.reason, condition.message, condition.observed_generation


class ConditionWriter:
    """Sets several conditions of one job in one cycle."""

    def __init__(self, job: GPUJob, now: datetime) -> None:
        self._generation = job.metadata.generation
        self._now = now

    def set(
        self, status: GPUJobStatus, kind: str, value: bool | None, reason: str, message: str = ""
    ) -> GPUJobStatus:
        return with_condition(
            status,
            kind=kind,
            value=value,
            reason=reason,
            message=message,
            generation=self._generation,
            now=self._now,
        )
