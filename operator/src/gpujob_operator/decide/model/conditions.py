"""Conditions of a GPUJob. An unchanged status keeps its transition time."""

from datetime import datetime
from operator import attrgetter
from typing import Any, Protocol

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
# True while a training leaves its GPU idle for a share of the time, for a service on it.
YIELDING = "Yielding"
# True while nothing of the job is tuned because the worker is not in it.
UNTUNED = "Untuned"
# True while an interruption starts the job again from the beginning.
UNPROTECTED = "Unprotected"
# True while an edit of the queue or the priority does not count for the attempt that runs.
EDIT_REJECTED = "EditRejected"

_STATUS: dict[bool | None, ConditionStatus] = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}
_TYPE = attrgetter("type")


class HasConditions(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


def find(status: HasConditions, kind: str) -> Condition | None:
    for condition in status.conditions:
        if condition.type == kind:
            return condition
    return None


class ConditionSetter:
    """Sets conditions of one object."""

    __slots__ = ("_generation", "_now", "conditions")

    def __init__(self, conditions: tuple[Condition, ...], generation: int, now: datetime) -> None:
        self.conditions = conditions
        self._generation = generation
        self._now = now

    def set(self, kind: str, value: bool | None, reason: str, message: str = "") -> None:
        """Sets the condition. None as `value` means Unknown."""
        wanted = _STATUS[value]
        message = visible(message[:MESSAGE_CHARACTERS_MAX])
        before = find(self, kind)
        if before is not None and (wanted, reason, message, self._generation) == _said(before):
            # This is the common case for thousands of jobs in every cycle.
            return
        turned = before is None or before.status is not wanted
        since = self._now if turned or before is None else before.last_transition_time
        after = Condition(
            type=kind,
            status=wanted,
            reason=reason,
            message=message,
            last_transition_time=since,
            observed_generation=self._generation,
        )
        others = [condition for condition in self.conditions if condition.type != kind]
        self.conditions = tuple(sorted([*others, after], key=_TYPE))

    def remove(self, kind: str) -> None:
        """Removes the condition if it exists."""
        if find(self, kind) is not None:
            self.conditions = tuple([one for one in self.conditions if one.type != kind])


class ConditionWriter(ConditionSetter):
    """Sets conditions in the status of one job.

    Thousands of jobs get several conditions in a cycle, and a status is large. `status` therefore
    copies it once.
    """

    __slots__ = ("_base",)

    def __init__(self, job: GPUJob, base: GPUJobStatus, now: datetime) -> None:
        super().__init__(base.conditions, job.metadata.generation, now)
        self._base = base

    def status(self, **changes: Any) -> GPUJobStatus:
        """Returns the status with these conditions and with `changes` to other fields.

        Returns the same object if nothing changed.
        """
        if self.conditions is not self._base.conditions:
            changes["conditions"] = self.conditions
        return changed(self._base, **changes) if changes else self._base


def _said(condition: Condition) -> tuple[object, ...]:
    """Returns the condition without its transition time."""
    return condition.status, condition.reason, condition.message, condition.observed_generation
