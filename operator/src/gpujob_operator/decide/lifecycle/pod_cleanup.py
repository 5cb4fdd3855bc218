"""Pods to delete: pods of jobs that are gone or being deleted, pods of no attempt of their job, and
ended pods that keep their own job from starting.
"""

from collections.abc import Iterable, Set
from dataclasses import replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import FINALIZER_ORPHAN
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds, pod_grace_seconds
from gpujob_operator.decide.model.placement_record import came_late
from gpujob_operator.decide.model.plan import DeletePod
from gpujob_operator.decide.model.snapshot import PodView, RefusedTemplate
from gpujob_operator.decide.model.workers import JobPods

# Finished pods of this many attempts are kept for their logs.
ATTEMPTS_KEPT = 3
# The age from which a pod can be an orphan. By then its job would have been seen if it existed. A
# watch that fell silent is noticed after 70 s, and lists again.
ORPHAN_SECONDS = 120.0
# How the API server names a quota of pods that counts ended ones. A quota of `pods` does not.
_COUNTS_ENDED = ("exceeded quota", "count/pods")


def abandoned_pods(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> tuple[DeletePod, ...]:
    """Returns the live pods of a job that is being deleted, even while a finalizer keeps the
    object.

    Returns no pods if the user orphans them.
    """
    if FINALIZER_ORPHAN in job.metadata.finalizers:
        return ()
    return tuple(
        delete_pod(job, pod, "its GPUJob is being deleted", configuration)
        for pod in pods
        if not pod.finished and pod.deletion_at is None
    )


def stray_pods(
    job: GPUJob, job_pods: JobPods, configuration: Configuration, now: datetime
) -> tuple[DeletePod, ...]:
    """Returns pods that are not part of the current attempt, and pods whose logs are no longer
    kept.

    These are live pods of ended attempts and of attempts that no status has. Pods that came late
    are deleted in any state, because the next leader would take over any that remains.
    """
    waiting = job.status.placement is None or job.finished
    found: list[DeletePod] = []
    for pod in job_pods.pods:
        late = came_late(job, pod)
        may_be_young = pod.created_at is None or _is_young(pod, now)
        if pod.attempt > job.status.attempt and not late and may_be_young:
            # This view of the job may be old. If it is not, restoring data lost the status.
            continue
        stray = not pod.finished and (waiting or pod not in job_pods.current)
        stale = pod.finished and not _is_kept(job, pod)
        if (stray or stale or late) and pod.deletion_at is None:
            reason = "not part of the current attempt" if stray else "logs of an old attempt"
            reason = "another process placed it and is not followed" if late else reason
            found.append(delete_pod(job, pod, reason, configuration))
    return tuple(found)


def pods_within_quota(
    job: GPUJob, job_pods: JobPods, refused: RefusedTemplate, configuration: Configuration
) -> tuple[DeletePod, ...]:
    """Returns the ended pods of a waiting job, if it is refused more pods by a quota that counts
    them.

    They would be deleted after a few more attempts, of which the quota allows none. A start is
    worth more than their logs. Their failures are in the job's status.
    """
    message = refused.message.lower()
    waits = job.status.placement is None and not job.finished and not job.spec.suspend
    leaves = job.metadata.deletion_timestamp is not None
    if not waits or leaves or not all(words in message for words in _COUNTS_ENDED):
        return ()
    return tuple(
        delete_pod(job, pod, "a ResourceQuota counts it, and its job waits", configuration)
        for pod in job_pods.pods
        if pod.finished and pod.deletion_at is None and _is_kept(job, pod)
        # A pod of a later attempt shows that this view of the job is old.
        if pod.attempt <= job.status.attempt
    )


def _is_kept(job: GPUJob, pod: PodView) -> bool:
    """Returns whether a finished pod is still kept for its log."""
    return pod.attempt > job.status.attempt - ATTEMPTS_KEPT


def delete_pod(job: GPUJob, pod: PodView, reason: str, configuration: Configuration) -> DeletePod:
    """Returns the deletion, with the pod's own grace or the job's.

    A pod whose owner reference was removed still belongs to the job. It is deleted only after the
    plan's other writes of the job.
    """
    grace = pod_grace_seconds(pod, grace_seconds(job, configuration))
    own = pod if pod.job_uid == job.metadata.uid else replace(pod, job_uid=job.metadata.uid)
    return DeletePod(own, grace, reason)


def orphaned_pods(
    pods: Iterable[PodView], invalid: Set[str], configuration: Configuration, now: datetime
) -> list[DeletePod]:
    """Returns pods whose owner is a job that is gone, in case the garbage collector missed them
    (I7).

    A user who orphans pods removes their owner references. Jobs of the `invalid` UIDs exist but
    cannot be read. A young pod may name a job that was not seen yet, because pods and jobs have
    separate watches.
    """
    grace = configuration.termination_grace_seconds
    orphans = [
        pod
        for pod in pods
        if pod.deletion_at is None and pod.job_uid not in invalid and not _is_young(pod, now)
    ]
    orphans.sort(key=lambda pod: pod.uid)
    return [DeletePod(pod, pod_grace_seconds(pod, grace), "its GPUJob is gone") for pod in orphans]


def _is_young(pod: PodView, now: datetime) -> bool:
    return pod.created_at is not None and (now - pod.created_at).total_seconds() < ORPHAN_SECONDS
