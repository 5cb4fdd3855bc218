"""Jobs whose next step is to be decided, and jobs that rest, with their deadlines.

A settled job rests because nothing follows from its state. A job with a write in flight rests
because what follows would wait for the end of the write.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.job_entry import JobEntry
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model.plan import NextStep


@dataclass(slots=True)
class StepQueue:
    """The queue of steps. It has a job until that is settled, and again after `requeue` or its
    deadline.
    """

    # By UID.
    to_step: set[str] = field(default_factory=set[str])
    # The settled jobs' own deadlines.
    next_at: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    # When a settled job has to act or write again.
    _quiet_until: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    # Jobs that rest during a write.
    _written: set[str] = field(default_factory=set[str])

    def settle(
        self,
        entry: JobEntry,
        step: NextStep,
        inputs: JobInputs,
        until: datetime,
        next_at: datetime | None,
    ) -> None:
        """Records that nothing follows from the same inputs until then.

        `next_at` is the job's own deadline.
        """
        uid = entry.job.metadata.uid
        self._written.discard(uid)
        entry.inputs, entry.step, entry.quiet_until = inputs, step, until
        self.to_step.discard(uid)
        self._quiet_until.put(uid, until)
        if next_at is not None:
            self.next_at.put(uid, next_at)
        else:
            self.next_at.drop(uid)

    def rest_while_written(
        self, entry: JobEntry, step: NextStep, inputs: JobInputs, until: datetime
    ) -> None:
        """Settles the job, at most until its write has ended (`end_writes`)."""
        self.settle(entry, step, inputs, until, until)
        self._written.add(entry.job.metadata.uid)

    def end_writes(self, entries: Mapping[str, JobEntry], writing: Collection[str]) -> None:
        """Requeues the jobs that rested for writes that have ended."""
        for uid in self._written.difference(writing):
            self.requeue(entries[uid])

    def requeue(self, entry: JobEntry) -> None:
        """Requires a new decision about the job, in this cycle and the following ones."""
        uid = entry.job.metadata.uid
        entry.inputs = entry.step = entry.quiet_until = None
        self._written.discard(uid)
        self.to_step.add(uid)
        self._quiet_until.drop(uid)
        self.next_at.drop(uid)

    def drop(self, uid: str) -> None:
        self._written.discard(uid)
        self.to_step.discard(uid)
        self._quiet_until.drop(uid)
        self.next_at.drop(uid)

    def wake(self, now: datetime) -> None:
        """Adds the settled jobs whose deadline is now or past."""
        self.to_step.update(self._quiet_until.due(now))
