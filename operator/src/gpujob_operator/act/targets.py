"""What an item of a plan writes: the object, as the key of its back-off, and its namespace."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.act.backoff import Target
from gpujob_operator.client.kube import JOBS, PODS, PROFILES, QUEUES, SERVICES
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    PlanItem,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.workers import worker_name


def namespace_of(item: PlanItem) -> str:
    """The namespace whose slots the write uses; empty for a cluster-scoped object."""
    match item:
        case WriteStatus() | RejectJob() | CreatePod() | DeleteJob():
            return item.job.metadata.namespace
        case DeletePod():
            return item.pod.namespace
        case SaveProfile() | DeleteProfile():
            return item.profile.metadata.namespace
        case WriteQueueStatus():
            return ""


def target_of(item: PlanItem) -> Target:
    """The object that is written, as the key of its back-off."""
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


def pod_name(item: CreatePod) -> str:
    return worker_name(item.job.metadata.name, item.job.status.attempt, item.rank)


def service_target(job: GPUJob) -> Target:
    return "create", SERVICES.plural, job.metadata.namespace, job.metadata.name
