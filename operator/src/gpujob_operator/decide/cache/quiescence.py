"""Settled jobs. Nothing follows for them while their inputs stay the same.

They are not looked at again before their deadline. `StepQueue` has the jobs whose next step is to
be decided, and those that rest, with their deadlines. A settled job rests because nothing follows
from its state. A job with a write in flight rests because what follows would wait for the end of
the write.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.jobs import JobEntry
from gpujob_operator.decide.capacity.calibration import with_pace
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.sites import Sites, facts_at, gpus_at, has_all_gpus
from gpujob_operator.decide.lifecycle.cost import cost_text
from gpujob_operator.decide.lifecycle.faults import pressure
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.reservation import profile_entry
from gpujob_operator.decide.measurement.slowdown import is_slowed, observed_pace, slowed_because
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import NextStep

# After every deadline.
FAR = datetime(9000, 1, 1, tzinfo=UTC)
_BESIDES_SITES = attrgetter(*(f.name for f in fields(JobInputs) if f.compare and f.name != "sites"))


def still_holds(entry: JobEntry, inputs: JobInputs, now: datetime) -> bool:
    """Returns whether the last step of a settled job also follows from these inputs."""
    before = entry.inputs
    if before is None or entry.quiet_until is None or now >= entry.quiet_until:
        return False
    if _BESIDES_SITES(before) != _BESIDES_SITES(inputs):
        return False
    if before.sites == inputs.sites:
        return True
    # Only the GPUs of its workers may differ.
    if entry.step is None or facts_at(before.sites) != facts_at(inputs.sites):
        return False
    if not has_all_gpus(entry.job, inputs.sites):
        return False
    return cotenants_irrelevant(entry.job, entry.step.status, inputs)


def cotenants_irrelevant(job: GPUJob, status: GPUJobStatus, inputs: JobInputs) -> bool:
    """Returns whether a change of co-tenants on the job's GPUs has no consequence.

    It assumes that nothing followed from the earlier co-tenants and that all else is unchanged.
    `status` is the job's next status. Every way in which a co-tenant affects a status, a profile or
    a reason to stop is checked here. Returns False if a full step is necessary.
    """
    gpus, profile = gpus_at(inputs.sites), inputs.profile
    shared = False
    for gpu in gpus:
        if gpu.blocked or gpu.free_bytes < 0:
            return False
        shared = shared or len(gpu.tenants) > 1
    if not shared:
        # The job is alone again, so its profile may learn how fast that is.
        return False
    if _outgrew(job, inputs):
        # How much more it can have, and whether it must leave, depends on the others.
        return False
    slowed = slowed_because(job, status, profile, gpus, inputs.yielding)
    if is_slowed(job.status) is not (slowed is not None):
        return False
    if cost_text(job, status, inputs.sites) != job.status.summary.cost:
        return False
    return inputs.yielding is not None or not _tells_a_pace(status, profile, gpus)


def is_steady(job: GPUJob, sites: Sites) -> bool:
    """Returns whether time alone brings nothing new before the next deadline.

    This holds for a finished job, and for a job that starts or runs on healthy nodes.
    """
    if job.finished or job.status.placement is None:
        return job.finished
    if job.status.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
        return False
    for site in sites:
        facts = site.facts
        if facts is None or facts.closed or facts.not_ready_since is not None:
            return False
    return has_all_gpus(job, sites) and pressure(job.status, sites) is None


def quiet_until(
    job: GPUJob, next_at: datetime | None, configuration: Configuration, *, held_back: bool
) -> datetime:
    """Returns the first moment at which a settled job may act or write.

    `held_back` means that some of its figures changed and are to be written later.
    """
    # Deadlines closer than a second count as one second.
    until = FAR if next_at is None else next_at - timedelta(seconds=1)
    written_at = job.status.observed_at
    if written_at is None or not held_back:
        return until
    return min(until, written_at + timedelta(seconds=configuration.progress_write_seconds))


def _outgrew(job: GPUJob, inputs: JobInputs) -> bool:
    """Returns whether the job is known to use more than it reserves."""
    held, known, usage = job.status.reservation, job.status.measurement, inputs.usage
    known_bytes = max(
        known.memory_bytes if known is not None else 0,
        usage.memory_peak_bytes if usage is not None else 0,
    )
    return held is not None and known_bytes > held.memory_bytes


def _tells_a_pace(
    status: GPUJobStatus, profile: GPUProfile | None, gpus: Sequence[GPUCapacity]
) -> bool:
    """Returns whether the job's slowdown by this many co-tenants is news for the profile."""
    pace = observed_pace(status, profile, gpus)
    if pace is None or status.placement is None:
        return False
    entry = profile_entry(profile, status.placement.gpu_model)
    known = entry.shared if entry is not None else ()
    return with_pace(known, pace) != known


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
