"""Items of plans, by the job that they are about."""

from collections.abc import Collection

from gpujob_operator.decide.model.plan import (
    DeletePod,
    DeleteProfile,
    Plan,
    PlanItem,
    SaveProfile,
    WriteQueueStatus,
)


def said_beside(plan: Plan, writing: Collection[str]) -> list[PlanItem]:
    """What is said of other jobs than those that are being written. Which job of a workload saves
    its profile depends on who is looked at, so that is left out.
    """
    return [
        item
        for item in plan.items
        if not isinstance(item, SaveProfile) and job_uid_of(item) not in writing
    ]


def job_uid_of(item: PlanItem) -> str:
    """Empty where the item is about no job."""
    if isinstance(item, DeletePod):
        return item.pod.job_uid or ""
    if isinstance(item, WriteQueueStatus | DeleteProfile | SaveProfile):
        return ""
    return item.job.metadata.uid
