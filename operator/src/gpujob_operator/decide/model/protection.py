"""Decides whether an interruption loses a job's run, and what part of the run is durable."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, SpotPolicy
from gpujob_api.report import CheckpointReport, Protection
from gpujob_api.settings import Task
from gpujob_operator.decide.model.checkpoint_claim import checkpoint_claim
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pod_template import pod_spec

# The event of an attempt that starts from the beginning. A metric counts it as well.
RESUME_REFUSED = "ResumeRefused"
# Any other volume of a template is deleted with the pod or stays on its node.
_DURABLE_VOLUMES = ("persistentVolumeClaim", "nfs")


class Unprotected(Enum):
    """Why the next attempt starts from the beginning even if the last one saved a checkpoint."""

    NO_DURABLE_PLACE = "NoDurablePlace"
    NOT_RESUMABLE = "NotResumable"


def why_unprotected(
    job: GPUJob, configuration: Configuration, reported: Protection | None = None
) -> Unprotected | None:
    """Returns why the job is unprotected, or None if it is protected.

    Also returns None while the worker has not reported whether the run can be resumed. `reported`
    is newer than the job's status. A server has no run that could be lost.
    """
    if job.spec.optimize.task is Task.SERVING:
        return None
    if not _has_durable_place(job, configuration):
        return Unprotected.NO_DURABLE_PLACE
    if (reported or job.status.protection) is Protection.FROM_BEGINNING:
        return Unprotected.NOT_RESUMABLE
    return None


def durable_checkpoint(job: GPUJob, configuration: Configuration) -> CheckpointReport | None:
    """Returns the checkpoint that the next attempt resumes from.

    A status of an earlier release may also name checkpoints that were lost with their pods.
    """
    saved = job.status.checkpoint
    return saved if saved is not None and why_unprotected(job, configuration) is None else None


def unprotected_message(job: GPUJob, why: Unprotected, reason: str = "") -> str:
    """Returns what is lost and what to do about it.

    `reason` is the worker's reason why the run cannot be resumed.
    """
    lost = "an interruption starts the job again from the beginning"
    if why is Unprotected.NOT_RESUMABLE:
        reason = reason or "the worker found that no checkpoint brings its run back exactly"
        page = "worker" if job.spec.checkpoint.path is None else "checkpoints"
        text = f"{lost}: {reason}; docs/guides/{page}.md names what helps"
    elif (path := _absolute_path(job)) is not None:
        text = (
            f"{lost}: checkpoint.path ({path[:128]}) is on no persistent volume; create the "
            "job again with a PersistentVolumeClaim mounted there"
        )
    else:
        text = (
            f"{lost}: its checkpoints go with its pod; create the job again with "
            "checkpoint.volumeClaimName"
        )
    if job.spec.spot.policy is SpotPolicy.REQUIRE:
        text += "; spot.policy: Require places it on spot nodes all the same"
    return text


def kept_off_spot(job: GPUJob, configuration: Configuration) -> Unprotected | None:
    """Returns why a job that prefers spot nodes is placed on none.

    Spot nodes save nothing if their loss costs the whole run.
    """
    prefers = job.spec.spot.policy is SpotPolicy.PREFER
    if not prefers or configuration.spot_allow_unprotected:
        return None
    return why_unprotected(job, configuration)


def _has_durable_place(job: GPUJob, configuration: Configuration) -> bool:
    claimed = checkpoint_claim(job, configuration.checkpoint_claim_template) is not None
    path = _absolute_path(job)
    if path is None:
        return claimed
    durable = _durable_at(job, path)
    return claimed if durable is None else durable


def _absolute_path(job: GPUJob) -> str | None:
    """Returns the folder of the script's own checkpoints, or None if the worker's
    folder is used.
    """
    path = job.spec.checkpoint.path
    return path if path is not None and path.startswith("/") else None


def _durable_at(job: GPUJob, path: str) -> bool | None:
    """Returns whether the template's volume at the path outlives the pod, or None if no volume is
    there.
    """
    try:
        mounts = [
            (str(mount["mountPath"]).rstrip("/") + "/", mount["name"])
            for mount in job.spec.worker_container().get("volumeMounts") or ()
        ]
        holding = [(at, name) for at, name in mounts if path.startswith(at)]
        if not holding:
            return None
        _, name = max(holding)
        volumes: Mapping[Any, Any] = {
            volume["name"]: volume for volume in pod_spec(job).get("volumes") or ()
        }
        return any(kind in volumes[name] for kind in _DURABLE_VOLUMES)
    except (AttributeError, FieldError, KeyError, TypeError):
        # Rendering and the API server refuse such a template and name the field.
        return None
