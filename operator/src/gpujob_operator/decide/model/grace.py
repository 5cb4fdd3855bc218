"""The grace of a worker: one number that is rendered in its pod, passed to the worker, and used at
a stop.
"""

from datetime import datetime, timedelta
from typing import Any, cast

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pod_template import pod_spec
from gpujob_operator.decide.model.snapshot import PodView

# 0 would let the API server remove the pod before its processes are known to be gone.
GRACE_SECONDS_MIN = 1
# After SIGKILL a kubelet takes a moment to say that the processes are gone.
LATE_SECONDS = 15.0


def grace_seconds(job: GPUJob, configuration: Configuration) -> int:
    """The grace of each worker, from SIGTERM to SIGKILL: the template's
    terminationGracePeriodSeconds or the configured default, and never more than the configured
    maximum.
    """
    asked = cast("Any", pod_spec(job).get("terminationGracePeriodSeconds"))
    is_number = isinstance(asked, int) and not isinstance(asked, bool)
    seconds = asked if is_number else configuration.termination_grace_seconds
    bounded = min(seconds, configuration.termination_grace_seconds_max)
    return max(bounded, GRACE_SECONDS_MIN)


def pod_grace_seconds(pod: PodView, otherwise: int) -> int:
    """The grace with which this pod was created, or `otherwise` if unknown."""
    seconds = pod.grace_seconds if pod.grace_seconds is not None else otherwise
    return max(seconds, GRACE_SECONDS_MIN)


def asked_seconds(job: GPUJob, configuration: Configuration) -> float:
    """How long the workers of a gang may agree on a step before they get SIGTERM."""
    return _asked_share(job) * grace_seconds(job, configuration)


def stop_seconds(job: GPUJob, configuration: Configuration) -> float:
    """The longest time from the decision of a stop to SIGKILL."""
    grace = grace_seconds(job, configuration)
    return grace + _asked_share(job) * grace


def awaited_until(job: GPUJob) -> datetime | None:
    """Until when others may wait for this job to leave its GPUs; None if it does not leave them.
    Whoever is not gone by then, on a dead node for example, may never be: others take another way.
    """
    stop = job.status.stop
    if job.status.phase is not JobPhase.STOPPING or stop is None:
        return None
    return stop.deadline + timedelta(seconds=LATE_SECONDS)


def is_awaited(job: GPUJob, now: datetime) -> bool:
    """True while the job is being stopped and is expected to leave its GPUs."""
    until = awaited_until(job)
    return until is not None and now < until


def _asked_share(job: GPUJob) -> float:
    """The part of the grace for which the workers of a gang may agree on a step."""
    return 0.5 if job.spec.workers > 1 else 0.0
