"""The object that an item of a plan writes, as the key of its back-off, and whether it can wait.

A placement, a stop, an end, and every creation or deletion goes first, because GPUs or people wait
for it. A write that only reports what is so already can wait a little if slots are short.
"""

from collections.abc import Sequence

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_operator.act.backoff import Target
from gpujob_operator.client.kube import JOBS, PODS, PROFILES, QUEUES, SERVICES
from gpujob_operator.decide.model.assumption import places
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    PlanItem,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.workers import worker_name


def namespace_of(item: PlanItem) -> str:
    """Returns the namespace whose slots the write uses. Empty for a cluster-scoped object."""
    match item:
        case WriteStatus() | RejectJob() | CreatePod() | DeleteJob() | TryTemplate():
            return item.job.metadata.namespace
        case DeletePod():
            return item.pod.namespace
        case SaveProfile() | DeleteProfile():
            return item.profile.metadata.namespace
        case WriteQueueStatus():
            return ""


def target_of(item: PlanItem) -> Target:
    """Returns the object that is written, as the key of its back-off."""
    namespace = namespace_of(item)
    match item:
        case WriteStatus() | RejectJob():
            return "update", JOBS.plural, namespace, item.job.metadata.name
        case CreatePod():
            return "create", PODS.plural, namespace, pod_name(item)
        case DeleteJob():
            return "delete", JOBS.plural, namespace, item.job.metadata.name
        case DeletePod():
            return "delete", PODS.plural, namespace, item.pod.name
        case SaveProfile():
            return "update", PROFILES.plural, namespace, item.profile.metadata.name
        case DeleteProfile():
            return "delete", PROFILES.plural, namespace, item.profile.metadata.name
        case WriteQueueStatus():
            return "update", QUEUES.plural, "", item.queue.metadata.name
        case TryTemplate():
            return "try", PODS.plural, namespace, item.job.metadata.name


def pod_name(item: CreatePod) -> str:
    return worker_name(item.job.metadata.name, item.job.status.attempt, item.rank)


def service_target(job: GPUJob) -> Target:
    return "create", SERVICES.plural, job.metadata.namespace, job.metadata.name


_BEGAN_TO_RUN = (JobPhase.STARTING, JobPhase.RUNNING)


def only_tells(item: PlanItem) -> bool:
    """Returns True for an informative write, which takes nothing, frees nothing and stops
    nothing.
    """
    match item:
        case WriteStatus():
            return _only_tells(item.job.status, item.status)
        case WriteQueueStatus() | SaveProfile() | TryTemplate():
            return True
        case _:
            return False


def in_place_of(older: WriteStatus, assumed: GPUJobStatus, newer: PlanItem) -> WriteStatus | None:
    """Returns one write in place of two, from the state before `older` to the state after `newer`.

    Returns None if `older` has to be written by itself. That is so if something waits for it, or if
    `newer` was decided for another attempt, on another state of the job, or not on the `assumed`
    status of `older`.
    """
    if not isinstance(newer, WriteStatus) or not only_tells(older):
        return None
    if newer.job.metadata != older.job.metadata or newer.job.status != assumed:
        return None
    if newer.status.attempt != older.status.attempt:
        return None
    return WriteStatus(older.job, newer.status, older.events + newer.events)


def is_outdated_by(older: PlanItem, newer: Sequence[PlanItem]) -> bool:
    """Returns True for the status with the reason why a job waits, if the job no longer waits."""
    says_why = isinstance(older, WriteStatus) and older.status.phase is JobPhase.PENDING
    return says_why and only_tells(older) and not all(map(only_tells, newer))


def _only_tells(before: GPUJobStatus, after: GPUJobStatus) -> bool:
    phases = before.phase, after.phase
    return (
        (before.phase is after.phase or phases == _BEGAN_TO_RUN)
        and after.attempt == before.attempt
        and places(after) == places(before)
        and after.reservation == before.reservation
        and after.stop == before.stop
    )
