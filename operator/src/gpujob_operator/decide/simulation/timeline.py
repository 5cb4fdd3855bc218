"""The timeline of every job in a simulation, in seconds from its start.

`TimelineRecorder` records it.
"""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobPhase, Placement, Reservation
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds

# Reasons of a job between two attempts, before the next admission pass.
_IN_BETWEEN = ("PreviousAttemptTerminating", "BackingOff")
# Maximum number of recorded starts and stops of one job.
EVENTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Placed:
    seconds: float
    attempt: int
    placement: Placement
    reservation: Reservation
    # The operator's own message.
    message: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt that was stopped early. `lost_gpu_seconds` is the work that has to be
    done again.
    """

    seconds: float
    reason: str
    message: str
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Waited:
    """Why the job waited at a time, in the operator's words."""

    seconds: float
    reason: str
    message: str


@dataclass(slots=True)
class JobTimeline:
    """One job. `ran_before` is its placement when the simulation began."""

    job: GPUJob
    ran_before: Placement | None
    placed: list[Placed] = field(default_factory=list[Placed])
    stopped: list[Stopped] = field(default_factory=list[Stopped])
    # The first and the last reason written to it.
    waited: list[Waited] = field(default_factory=list[Waited])
    finished_seconds: float | None = None
    phase: JobPhase = JobPhase.PENDING

    @property
    def name(self) -> str:
        return self.job.metadata.key

    @property
    def starts_seconds(self) -> float | None:
        """When the job first gets GPUs. 0 if it already has them."""
        if self.ran_before is not None:
            return 0.0
        return self.placed[0].seconds if self.placed else None

    @property
    def waits_in_the_end(self) -> bool:
        """True if the job has no GPUs although it should run."""
        return self.phase is JobPhase.PENDING and not self.job.spec.suspend

    @property
    def lost_gpu_seconds(self) -> float:
        return sum(stop.lost_gpu_seconds for stop in self.stopped)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All jobs by UID, how far the simulation ran, and why it ended."""

    jobs: dict[str, JobTimeline]
    seconds: float
    cycles: int
    ended: str


class TimelineRecorder:
    """Records plans before they are applied."""

    def __init__(
        self, start: datetime, jobs: dict[str, GPUJob], configuration: Configuration
    ) -> None:
        self._start = start
        self._configuration = configuration
        self.jobs = {
            uid: JobTimeline(job, job.status.placement, phase=job.status.phase)
            for uid, job in jobs.items()
        }

    def note(self, plan: Plan, jobs: dict[str, GPUJob], now: datetime) -> bool:
        """Records what the plan changes. Returns whether any job changes its phase."""
        changed = False
        for item in plan.items:
            if isinstance(item, WriteStatus):
                uid = item.job.metadata.uid
                if uid not in self.jobs:
                    # A job that arrived meanwhile.
                    self.jobs[uid] = JobTimeline(jobs[uid], None)
                changed |= self._note(self.jobs[uid], jobs[uid], item, now)
        return changed

    def _note(
        self, timeline: JobTimeline, before: GPUJob, item: WriteStatus, now: datetime
    ) -> bool:
        seconds = (now - self._start).total_seconds()
        was, after = before.status, item.status
        if after.placement is not None and after.attempt != was.attempt:
            self._placed(timeline, item, seconds)
        if _is_stopped(before, item):
            timeline.stopped = [*timeline.stopped, self._stop(before, item, now)][-EVENTS_MAX:]
        if after.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
            timeline.finished_seconds = seconds
        if after.phase is JobPhase.PENDING:
            _wait(timeline, item, seconds)
        timeline.phase = after.phase
        return was.phase is not after.phase

    def _placed(self, timeline: JobTimeline, item: WriteStatus, seconds: float) -> None:
        placement, held = item.status.placement, item.status.reservation
        assert placement is not None, "asked by the caller"
        assert held is not None, "written with the placement"
        condition = conditions.find(item.status, conditions.SCHEDULED)
        text = condition.message if condition is not None else ""
        placed = Placed(seconds, item.status.attempt, placement, held, text)
        timeline.placed = [*timeline.placed, placed][-EVENTS_MAX:]

    def _stop(self, before: GPUJob, item: WriteStatus, now: datetime) -> Stopped:
        """Records a stop that was decided, or an attempt that ended with its node."""
        stop = item.status.stop
        running = conditions.find(item.status, conditions.RUNNING)
        if stop is not None:
            reason, message = stop.reason, stop.message
        else:
            reason = running.reason if running is not None else "Ended"
            message = running.message if running is not None else ""
        lost = interruption_gpu_seconds(before, self._configuration, now, asked=stop is not None)
        return Stopped((now - self._start).total_seconds(), reason, message, lost)


def _is_stopped(before: GPUJob, item: WriteStatus) -> bool:
    was, after = before.status, item.status
    asked = was.stop is None and after.stop is not None
    vanished = was.placement is not None and after.placement is None and was.stop is None
    return asked or (vanished and not item.job.finished)


def _wait(timeline: JobTimeline, item: WriteStatus, seconds: float) -> None:
    condition = conditions.find(item.status, conditions.SCHEDULED)
    if condition is None or condition.status is ConditionStatus.TRUE:
        return
    if condition.reason in _IN_BETWEEN:
        return
    timeline.waited = [*timeline.waited[:1], Waited(seconds, condition.reason, condition.message)]
