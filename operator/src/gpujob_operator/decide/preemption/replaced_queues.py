"""Recognizes jobs whose queue, or a queue above it, may only be missing for a moment.

`kubectl replace --force`, and tools that apply from git with the same option, delete a queue and
create it again. In between, its jobs are promised nothing, and nobody should be stopped for that.
"""

from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.conditions import ACCEPTED, EDIT_REJECTED, find
from gpujob_operator.decide.queue.tree import PARENT_NOT_FOUND, QueueTree

# A queue that is missing for longer was deleted.
REPLACED_SECONDS = 300.0


def may_be_replaced(job: GPUJob, name: str, tree: QueueTree, now: datetime) -> bool:
    """Returns whether `name`, the queue of the running job, or a queue above it, has been missing
    for less than `REPLACED_SECONDS`, by the condition that reports it.
    """
    root = tree.path(name)[-1]
    queue, problem = tree.by_name.get(root), tree.problems.get(root)
    if queue is None:
        reported = find(job.status, EDIT_REJECTED)
    elif problem is not None and problem.reason == PARENT_NOT_FOUND:
        reported = find(queue.status, ACCEPTED)
    else:
        return False
    if reported is None or (problem is not None and reported.reason != problem.reason):
        return True
    return now - reported.last_transition_time < timedelta(seconds=REPLACED_SECONDS)
