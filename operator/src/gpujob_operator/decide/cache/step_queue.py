"""Jobs whose next step is to be decided, and settled ones with their deadlines."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.job_entry import JobEntry
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model.plan import NextStep


@dataclass(slots=True)
class StepQueue:
    """A job is in it until it is settled, and again from `requeue` or its deadline on."""

    # By UID.
    to_step: set[str] = field(default_factory=set[str])
    # The deadlines of settled jobs themselves.
    next_at: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    # When a settled job has something to do or to say again.
    _quiet_until: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())

    def settle(
        self,
        entry: JobEntry,
        step: NextStep,
        inputs: JobInputs,
        until: datetime,
        next_at: datetime | None,
    ) -> None:
        """Nothing follows from the same until then; `next_at` is the job's own deadline."""
        uid = entry.job.metadata.uid
        entry.inputs, entry.step, entry.quiet_until = inputs, step, until
        self.to_step.discard(uid)
        self._quiet_until.put(uid, until)
        if next_at is not None:
            self.next_at.put(uid, next_at)
        else:
            self.next_at.drop(uid)

    def requeue(self, entry: JobEntry) -> None:
        """The job's next step is decided anew, in this cycle and those to come."""
        uid = entry.job.metadata.uid
        entry.inputs = entry.step = entry.quiet_until = None
        self.to_step.add(uid)
        self._quiet_until.drop(uid)
        self.next_at.drop(uid)

    def drop(self, uid: str) -> None:
        self.to_step.discard(uid)
        self._quiet_until.drop(uid)
        self.next_at.drop(uid)

    def wake(self, now: datetime) -> None:
        """Puts in the settled jobs whose deadline is now or past."""
        self.to_step.update(self._quiet_until.due(now))
