"""How much of its time a training yields to a service on the same GPU.

The share follows what the replicas' requests need of their objective, by steps, so that each step
shows its effect before the next one. Trainings yield to replicas, and never the other way round.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.report import YIELD_INTERVALS, YIELD_PERCENT_MAX
from gpujob_operator.decide.model.others import name_for
from gpujob_operator.decide.model.snapshot import ReceivedReport, Yielding

# In percent of the objective. Between the two, the share stays as it is.
RAISED_ABOVE, LOWERED_BELOW = 90.0, 70.0
STEP_PERCENT = 10
# At least, between two steps of one training. A replica reports what its requests needed in the
# last 10 s.
STEP_SECONDS = 10.0
# A report counts for at least this long.
FRESH_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a decision, and how often workers report. Rare reports make both limits longer,
    as they do for the worker.
    """

    now: datetime
    interval_seconds: float

    def is_fresh(self, received: ReceivedReport) -> bool:
        """Returns whether the report still counts."""
        age_seconds = (self.now - received.received_at).total_seconds()
        return age_seconds <= max(FRESH_SECONDS, YIELD_INTERVALS * self.interval_seconds)

    def is_recent(self, before: Yielding) -> bool:
        """Returns whether the last step is too recent for another one. A clock that was set back
        delays none.
        """
        seconds = max(STEP_SECONDS, YIELD_INTERVALS * self.interval_seconds)
        return timedelta(0) <= self.now - before.changed_at < timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Replica:
    job: GPUJob
    # 0 without requests, and without a fresh report of a replica that answers.
    needed_percent: float


def next_yields(
    before: Iterable[Yielding],
    reports: Iterable[ReceivedReport],
    job_of: Callable[[str], GPUJob | None],
    moment: Moment,
) -> tuple[Yielding, ...]:
    """Returns the trainings that yield from now on. `job_of` returns the job of a UID.

    A training whose worker cannot yield, or that does not report any more, is left out. So is one
    that shares no GPU with a replica any more.
    """
    received = [one for one in reports if one.rank == 0]
    replicas = _replicas_by_gpu(received, job_of, moment)
    if not replicas:
        return ()
    known = {one.job_uid: one for one in before}
    found: list[Yielding] = []
    for one in received:
        if one.report.yielded_seconds is None or not moment.is_fresh(one):
            continue
        job = _running(one, job_of)
        beside = _beside(job, replicas) if job is not None else []
        if job is not None and beside:
            following = _following(known.get(one.job_uid), job, beside, moment)
            found += [following] if following is not None else []
    return tuple(found)


def _replicas_by_gpu(
    reports: Iterable[ReceivedReport], job_of: Callable[[str], GPUJob | None], moment: Moment
) -> Mapping[str, list[_Replica]]:
    found: defaultdict[str, list[_Replica]] = defaultdict(list)
    for one in reports:
        serving = one.report.serving
        job = _running(one, job_of) if serving is not None else None
        if serving is None or job is None:
            continue
        counts = serving.ready and moment.is_fresh(one)
        replica = _Replica(job, (serving.needed_percent or 0.0) if counts else 0.0)
        for uuid in _gpus_of(job):
            found[uuid].append(replica)
    return found


def _running(received: ReceivedReport, job_of: Callable[[str], GPUJob | None]) -> GPUJob | None:
    """Returns the job that made the report, if the report is of its attempt and that one runs."""
    job = job_of(received.job_uid)
    if job is None or job.status.phase is not JobPhase.RUNNING:
        return None
    return job if received.report.attempt == job.status.attempt else None


def _gpus_of(job: GPUJob) -> set[str]:
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    return {uuid for worker in workers for uuid in worker.gpus}


def _beside(job: GPUJob, replicas: Mapping[str, list[_Replica]]) -> list[_Replica]:
    """Returns the replicas that share a GPU with a training. The workers of a gang wait for the
    slowest one, so all of them yield.
    """
    return [replica for uuid in sorted(_gpus_of(job)) for replica in replicas.get(uuid, ())]


def _following(
    before: Yielding | None, job: GPUJob, beside: list[_Replica], moment: Moment
) -> Yielding | None:
    worst = max(beside, key=lambda replica: replica.needed_percent)
    percent = before.percent if before is not None else 0
    if before is not None and moment.is_recent(before):
        return before
    if worst.needed_percent > RAISED_ABOVE:
        percent = min(percent + STEP_PERCENT, YIELD_PERCENT_MAX)
    elif worst.needed_percent < LOWERED_BELOW:
        percent = max(percent - STEP_PERCENT, 0)
    if before is not None and percent == before.percent:
        return before
    if not percent:
        return None
    raised = before is None or percent > before.percent
    replica = name_for(job, worst.job) if raised or before is None else before.replica
    return Yielding(job.metadata.uid, percent, replica, moment.now)
