"""GPUs of an attempt that its nodes do not have any more: the driver lost them, or a node came back
under its name with others.

One reading that leaves a GPU out proves little (I14). While the attempt reports, its GPUs are
there.
"""

from dataclasses import replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobFailure, StopReason
from gpujob_api.quantities import format_count
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.availability import ClosedReason
from gpujob_operator.decide.capacity.sites import Sites, WorkerSite
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.model.stop_reasons import GPU_GONE, rule_of

# An attempt that has reported within this time works, whatever a reading leaves out.
SILENT_SECONDS = 30.0
# A node that is closed for one of these does not say what it has now.
_TELLS_NOTHING = (ClosedReason.STALE, ClosedReason.UNMEASURED, ClosedReason.NOT_READY)


def gone_gpus(job: GPUJob, sites: Sites) -> str:
    """Which GPUs of the attempt its nodes do not show, for people; "" if they show all. A reading
    without any GPU says nothing."""
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    for worker, site in zip(workers, sites, strict=False):
        gone = [uuid for uuid in worker.gpus if site.gpu(uuid) is None]
        if gone and site.facts is not None and _tells(site):
            there = format_count(site.facts.gpus, "GPU")
            which, verb = ", ".join(gone[:3]), "is" if len(gone) == 1 else "are"
            return f"{which} of node {site.node} {verb} gone; its agent shows {there}"
    return ""


def stop_for_gone_gpus(
    job: GPUJob, inputs: JobInputs, now: datetime, deadline: datetime
) -> StopReason | None:
    """Why the attempt cannot go on: a GPU is gone, and nothing is heard of the attempt."""
    gone = gone_gpus(job, inputs.sites)
    if not gone or seconds_until_silent(job, inputs, now) > 0:
        return None
    return StopReason(GPU_GONE, gone, deadline)


def seconds_until_silent(job: GPUJob, inputs: JobInputs, now: datetime) -> float:
    """For how long what was last heard of the attempt still counts. A process that has just begun
    to listen may not have heard of it yet."""
    report = inputs.report
    speaks = report is not None and report.report.attempt == job.status.attempt
    heard = report.received_at if report is not None and speaks else None
    moments = [at for at in (heard, inputs.listening_since) if at is not None]
    if not moments:
        return 0.0
    return SILENT_SECONDS - (now - max(moments)).total_seconds()


def without_gone_gpus_faults(job: GPUJob, outcome: Outcome, sites: Sites) -> Outcome:
    """The outcome; an interruption where a worker failed for no reason of its own that anybody
    knows, and a GPU of the attempt is gone."""
    failure = outcome.failure
    unexplained = failure is not None and failure.failure_class is FailureClass.UNKNOWN
    if outcome.end is not AttemptEnd.FAILED or failure is None or not unexplained:
        return outcome
    gone = gone_gpus(job, sites) if rule_of(job.status.stop).failure is None else ""
    if not gone:
        return outcome
    excused = JobFailure(failure.failure_class, f"{failure.message}; not counted, because {gone}")
    return replace(outcome, end=AttemptEnd.INTERRUPTED, failure=excused)


def _tells(site: WorkerSite) -> bool:
    facts = site.facts
    if facts is None or not facts.gpus:
        return False
    return facts.closed is None or facts.closed.reason not in _TELLS_NOTHING
