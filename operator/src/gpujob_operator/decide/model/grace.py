"""The grace of a worker. The same number is rendered in its pod, passed to the worker, and used at
a stop.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, cast

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pod_template import pod_spec
from gpujob_operator.decide.model.snapshot import PodView

# 0 would let the API server remove the pod before its processes are known to be gone.
GRACE_SECONDS_MIN = 1
# After SIGKILL a kubelet takes a moment to report that the processes are gone.
LATE_SECONDS = 15.0


def grace_seconds(job: GPUJob, configuration: Configuration) -> int:
    """Returns the grace of each worker, from SIGTERM to SIGKILL, in seconds.

    It is the template's terminationGracePeriodSeconds or the configured default, and never more
    than the configured maximum.
    """
    asked = cast("Any", pod_spec(job).get("terminationGracePeriodSeconds"))
    is_number = isinstance(asked, int) and not isinstance(asked, bool)
    seconds = asked if is_number else configuration.termination_grace_seconds
    bounded = min(seconds, configuration.termination_grace_seconds_max)
    return max(bounded, GRACE_SECONDS_MIN)


def pod_grace_seconds(pod: PodView, otherwise: int) -> int:
    """Returns the grace with which this pod was created, or `otherwise` if it is unknown."""
    seconds = pod.grace_seconds if pod.grace_seconds is not None else otherwise
    return max(seconds, GRACE_SECONDS_MIN)


def asked_seconds(job: GPUJob, configuration: Configuration) -> float:
    """Returns how long the workers of a gang may take to agree on a step before they
    get SIGTERM.
    """
    return _asked_share(job) * grace_seconds(job, configuration)


def stop_seconds(job: GPUJob, configuration: Configuration) -> float:
    """Returns the longest time from the decision to stop until SIGKILL."""
    grace = grace_seconds(job, configuration)
    return grace + _asked_share(job) * grace


def awaited_until(job: GPUJob) -> datetime | None:
    """Returns until when other jobs may wait for this job to leave its GPUs.

    Returns None if the job does not leave them. A job that still holds its GPUs after that time, on
    a dead node for example, may never leave, so other jobs look for another way.
    """
    stop = job.status.stop
    if job.status.phase is not JobPhase.STOPPING or stop is None:
        return None
    return stop.deadline + timedelta(seconds=LATE_SECONDS)


def is_awaited(job: GPUJob, now: datetime) -> bool:
    """Returns whether the job is being stopped and is expected to leave its GPUs."""
    until = awaited_until(job)
    return until is not None and now < until


def past_grace(pods: Iterable[PodView], now: datetime) -> tuple[str, float | None]:
    """Returns advice about the first pod that outlived its grace, and when the next pod will.

    The advice is "" if there is no such pod. The second value is in seconds, and None if no other
    pod can outlive its grace. Only the end of a pod proves that its processes are gone (I3), so a
    person has to check.
    """
    due = [(pod.deletion_at, pod) for pod in pods if pod.deletion_at is not None]
    late = [pod for at, pod in due if (now - at).total_seconds() > LATE_SECONDS]
    ahead = [at + timedelta(seconds=LATE_SECONDS + 1) for at, _ in due]
    next_at = min((at for at in ahead if at > now), default=None)
    next_seconds = (next_at - now).total_seconds() if next_at is not None else None
    if not late:
        return "", next_seconds
    pod, where = late[0], f" on node {late[0].node}" if late[0].node else ""
    text = (
        f"{pod.name}{where} is past its grace: if that node is gone for good, "
        f"kubectl delete pod {pod.name} -n {pod.namespace} --force lets the job go on"
    )
    return text, next_seconds


def _asked_share(job: GPUJob) -> float:
    """Returns the part of the grace in which the workers of a gang may agree on a step."""
    return 0.5 if job.spec.workers > 1 else 0.0
