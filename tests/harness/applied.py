"""What a snapshot looks like once a plan was written: the API server in one function."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.codec import decode, encode
from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    Plan,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.snapshot import InvalidJob, PodView, Snapshot
from gpujob_operator.read.pods import pod_view
from gpujob_operator.render.pod import worker_pod


def applied(snapshot: Snapshot, plan: Plan, now: datetime) -> Snapshot:
    """The snapshot after every item was written. Finished pods that are deleted are gone."""
    jobs = {job.metadata.uid: job for job in snapshot.jobs}
    invalid = {job.metadata.uid: job for job in snapshot.invalid_jobs}
    pods = {pod.uid: pod for pod in snapshot.pods}
    queues = {queue.metadata.name: queue for queue in snapshot.queues}
    profiles = {_profile_key(profile): profile for profile in snapshot.profiles}
    for item in (item for item in plan.items if not isinstance(item, TryTemplate)):
        match item:
            case WriteStatus():
                status = decode(GPUJobStatus, encode(item.status), "status")
                jobs[item.job.metadata.uid] = replace(item.job, status=status)
            case RejectJob():
                invalid[item.job.metadata.uid] = _rejected(item.job)
            case CreatePod():
                _create(pods, item, jobs[item.job.metadata.uid], snapshot, now)
            case DeletePod():
                _delete(pods, item, now)
            case DeleteJob():
                jobs.pop(item.job.metadata.uid, None)
            case SaveProfile():
                profiles[_profile_key(item.profile)] = item.profile
            case DeleteProfile():
                profiles.pop(_profile_key(item.profile), None)
            case WriteQueueStatus():
                queues[item.queue.metadata.name] = _with_status(item)
    return replace(
        snapshot,
        jobs=tuple(jobs.values()),
        invalid_jobs=tuple(invalid.values()),
        pods=tuple(pods.values()),
        queues=tuple(queues.values()),
        profiles=tuple(profiles.values()),
    )


def _profile_key(profile: GPUProfile) -> tuple[str, str]:
    return profile.metadata.namespace, profile.metadata.name


def _rejected(job: InvalidJob) -> InvalidJob:
    return replace(job, observed_generation=job.metadata.generation)


def _with_status(item: WriteQueueStatus) -> GPUQueue:
    return replace(item.queue, status=item.status)


def _create(
    pods: dict[str, PodView], item: CreatePod, job: GPUJob, snapshot: Snapshot, now: datetime
) -> None:
    manifest: dict[str, Any] = worker_pod(replace(item, job=job), snapshot.configuration)
    names = {(pod.namespace, pod.name) for pod in pods.values()}
    metadata = manifest["metadata"]
    if (metadata["namespace"], metadata["name"]) in names:
        return
    metadata["uid"] = f"pod-{metadata['name']}"
    metadata["creationTimestamp"] = now.isoformat()
    pods[metadata["uid"]] = pod_view(manifest)


def _delete(pods: dict[str, PodView], item: DeletePod, now: datetime) -> None:
    pod = pods.get(item.pod.uid)
    if pod is None:
        return
    if pod.finished:
        del pods[pod.uid]
        return
    at = now + timedelta(seconds=item.grace_seconds)
    pods[pod.uid] = replace(pod, deletion_at=min(pod.deletion_at or at, at))
