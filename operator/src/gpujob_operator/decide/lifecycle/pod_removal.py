"""Which of a job's pods are deleted, besides those of an attempt that is stopped."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import FINALIZER_ORPHAN
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds, pod_grace_seconds
from gpujob_operator.decide.model.plan import DeletePod
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.workers import current_workers

# Finished pods of this many attempts are kept for their logs.
ATTEMPTS_KEPT = 3


def abandoned(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> tuple[DeletePod, ...]:
    """Deletes the live pods of a job that is being deleted, even while a finalizer keeps the
    object. Does nothing if the user orphans the pods.
    """
    if FINALIZER_ORPHAN in job.metadata.finalizers:
        return ()
    return tuple(
        deletion(job, pod, "its GPUJob is being deleted", configuration)
        for pod in pods
        if not pod.finished and pod.deletion_at is None
    )


def strays_of(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> tuple[DeletePod, ...]:
    """Live pods of ended attempts, and finished pods whose logs are no longer kept."""
    waiting = job.status.placement is None or job.finished
    current = {pod.uid for pod in current_workers(job, pods)}
    # Pods of a later attempt than that of the status mean that this view of the job is old.
    known = tuple(pod for pod in pods if pod.attempt <= job.status.attempt)
    found: list[DeletePod] = []
    for pod in known:
        stray = not pod.finished and (waiting or pod.uid not in current)
        stale = pod.finished and pod.attempt <= job.status.attempt - ATTEMPTS_KEPT
        if (stray or stale) and pod.deletion_at is None:
            reason = "not part of the current attempt" if stray else "logs of an old attempt"
            found.append(deletion(job, pod, reason, configuration))
    return tuple(found)


def deletion(job: GPUJob, pod: PodView, reason: str, configuration: Configuration) -> DeletePod:
    grace = pod_grace_seconds(pod, grace_seconds(job, configuration))
    return DeletePod(pod, grace, reason)
