"""Decides whether other jobs may be stopped for a job.

They may not if the job did not use the capacity of an earlier preemption. The API server,
kube-scheduler or a kubelet may refuse its pods for any reason. Other jobs would then lose their
work for nothing, and after a few times they could not be preempted for any job any more.

After a preemption whose beneficiary did not start, or failed at its start, no job is stopped for
it. This holds until its spec is edited, or until a pause is over that doubles each time. The job
can still start on free capacity.
"""

from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import format_count
from gpujob_api.start_refusal import OthersStopped
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.spec_refusals import current_refusals

PAUSE_SECONDS = 3600.0
PAUSE_SECONDS_MAX = 86_400.0


def barred_seconds(job: GPUJob, now: datetime) -> float:
    """Returns for how many seconds no other job is stopped for this one. 0: others may be
    stopped.
    """
    anywhere = [one.until for one in current_refusals(job) if one.node is None]
    until = [(at - now).total_seconds() for at in anywhere]
    return max(_vain_seconds(job, now), *until, 0.0)


def _vain_seconds(job: GPUJob, now: datetime) -> float:
    stopped = job.status.others_stopped
    if stopped is None or stopped.attempt >= job.status.attempt:
        return 0.0
    if stopped.generation != job.metadata.generation:
        return 0.0
    pause = backoff_seconds(PAUSE_SECONDS, stopped.count, PAUSE_SECONDS_MAX)
    return pause - (now - stopped.at).total_seconds()


def barred_text(job: GPUJob, now: datetime) -> str:
    """Returns why no job is stopped for a waiting job, and until when, or ""."""
    left, stopped = _vain_seconds(job, now), job.status.others_stopped
    if left <= 0 or stopped is None:
        return ""
    times = format_count(stopped.count + 1, "time")
    refusals = current_refusals(job)
    said = f": {refusals[-1].message}" if refusals else ""
    what = "start" if refusals else "start, or failed at its start,"
    return (
        f"no job is stopped for it in the next {left:.0f} s, unless its spec is edited, because it "
        f"did not {what} after others were stopped for it ({times}){said}"
    )


def with_others_stopped(job: GPUJob, now: datetime) -> OthersStopped:
    """Returns the record, for the job's status, that other jobs are stopped for it now."""
    before, generation = job.status.others_stopped, job.metadata.generation
    count = 0
    if before is not None and before.generation == generation:
        count = before.count + (before.attempt < job.status.attempt)
    return OthersStopped(now, job.status.attempt, generation, count)
