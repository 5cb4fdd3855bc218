"""Applies the rules of admission to a running job whose queue or priority, or whose queue's own
rules, were edited.

The attempt moves to the queue in `spec.queue` once that queue admits the job and has the quota for
it. Until then it counts in the queue that admitted it (`status.queue`), and a condition reports
this. Its priority is capped to what that queue allows. If the queue that admitted it is gone, or no
longer admits it, the attempt runs on and the condition reports this, too.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.conditions import EDIT_REJECTED, ConditionWriter, find
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import EventNote, NextStep
from gpujob_operator.decide.queue.quota import QuotaState

PRIORITY_CAPPED, QUEUE_CHANGED = "PriorityCapped", "QueueChanged"


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    message: str


def follow_edits(job: GPUJob, step: NextStep, queues: QuotaState, now: datetime) -> NextStep:
    """Returns the step of a running job with the effects of its edits.

    `job` has the status after `step`. Returns the same object if the edits change nothing. The
    job's reservation is counted in the queue that it moves to.
    """
    if job.status.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
        return step
    refusal = _queue_refusal(job, queues)
    events = step.events
    if refusal is None and queues.queue_of(job) != job.spec.queue:
        before = queues.queue_of(job)
        queues.add(job, job.status, -1)
        job = replace(job, status=changed(job.status, queue=job.spec.queue))
        queues.add(job, job.status)
        text = f"the attempt counts in queue {job.spec.queue} from now on, and no longer in"
        events = (*events, EventNote(QUEUE_CHANGED, f"{text} {before}"))
    refusal = refusal or _priority_refusal(job, queues)
    writer = ConditionWriter(job, job.status, now)
    if refusal is None:
        writer.remove(EDIT_REJECTED)
    else:
        known = find(job.status, EDIT_REJECTED)
        writer.set(EDIT_REJECTED, True, refusal.reason, refusal.message)
        if known is None or known.reason != refusal.reason:
            events = (*events, EventNote(refusal.reason, refusal.message))
    status = writer.status()
    return step if status is step.status else replace(step, status=status, events=events)


def _queue_refusal(job: GPUJob, queues: QuotaState) -> _Refusal | None:
    """Returns why the job's queue no longer admits the attempt, or why the attempt does not move to
    the queue that its spec names. Returns None if neither is so.
    """
    admitted, name = queues.queue_of(job), job.spec.queue
    missing = queues.unknown_queue(job)
    if admitted == name:
        return _refusal_of_its_queue(missing, queues.namespace_refusal(job))
    where = f"uses the quota of queue {admitted}" if admitted else "counts in no queue"
    effect = f"the attempt runs on and {where} until it ends"
    if missing:
        return _Refusal(PendingReason.QUEUE_NOT_FOUND.value, f"{missing}; {effect}")
    refusal = queues.refusal(job)
    if refusal:
        back = f"; set spec.queue back to {admitted}, or name another queue" if admitted else ""
        return _Refusal(PendingReason.INADMISSIBLE.value, f"{refusal}; {effect}{back}")
    held = job.status.reservation
    with queues.simulate_removal([job]):
        over = queues.quota_shortfall(job, held.memory_bytes if held is not None else 0)
    if not over:
        return None
    text = f"spec.queue: {name}: {over}; {effect}, or until there is quota in {name}"
    return _Refusal(PendingReason.OVER_QUOTA.value, text)


def _refusal_of_its_queue(missing: str, refused: str) -> _Refusal | None:
    """Returns why the queue that admitted the attempt would not admit it again, or None."""
    if missing:
        effect = "the attempt runs on, and gives its GPUs back to the queues that have quota"
        next_step = "create the queue again, or set spec.queue to another one"
        return _Refusal(PendingReason.QUEUE_NOT_FOUND.value, f"{missing}; {effect}; {next_step}")
    if refused:
        effect = "the attempt runs on in it, and the job is not admitted again"
        next_step = "set spec.queue to a queue that admits it"
        return _Refusal(PendingReason.INADMISSIBLE.value, f"{refused}; {effect}; {next_step}")
    return None


def _priority_refusal(job: GPUJob, queues: QuotaState) -> _Refusal | None:
    name, asked, given = queues.queue_of(job), job.spec.priority, queues.priority_of(job)
    if asked == given:
        return None
    text = f"spec.priority: {asked} is not given by GPUQueue {name}: it counts as {given} while"
    after = "the attempt runs, and the job is not admitted again with it: set a priority in range"
    return _Refusal(PRIORITY_CAPPED, f"{text} {after}")
