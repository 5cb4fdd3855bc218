"""Whether other jobs may be stopped for a job: not again for one that did not use what it got.

Whoever keeps its pods from starting (the API server, kube-scheduler, a kubelet), and whatever for:
others lose their work for nothing, and after a few times cannot be preempted for anybody any more.
So after a preemption whose beneficiary did not start, or failed at its start, nobody is stopped for
it until its spec is edited, or until a pause is over that doubles each time. It still starts on
what is free.
"""

from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import format_count
from gpujob_api.start_refusal import OthersStopped
from gpujob_operator.decide.model.spec_refusals import current_refusals

PAUSE_SECONDS = 3600.0
PAUSE_SECONDS_MAX = 86_400.0


def barred_seconds(job: GPUJob, now: datetime) -> float:
    """For how long no other job is stopped for this one; 0: others may be."""
    anywhere = [one.until for one in current_refusals(job) if one.node is None]
    until = [(at - now).total_seconds() for at in anywhere]
    return max(_vain_seconds(job, now), *until, 0.0)


def _vain_seconds(job: GPUJob, now: datetime) -> float:
    stopped = job.status.others_stopped
    if stopped is None or stopped.attempt >= job.status.attempt:
        return 0.0
    if stopped.generation != job.metadata.generation:
        return 0.0
    pause = min(PAUSE_SECONDS * 2 ** min(stopped.count, 16), PAUSE_SECONDS_MAX)
    return pause - (now - stopped.at).total_seconds()


def barred_text(job: GPUJob, now: datetime) -> str:
    """Why nobody is stopped for a job that waits, and until when; "" where that is not so."""
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
    """What the status of a job remembers for which others are stopped now."""
    before, generation = job.status.others_stopped, job.metadata.generation
    count = 0
    if before is not None and before.generation == generation:
        count = before.count + (before.attempt < job.status.attempt)
    return OthersStopped(now, job.status.attempt, generation, count)
