"""Renders status patches. The snapshot's resourceVersion is the precondition of each."""

from datetime import datetime
from typing import Any

from gpujob_api.codec import encode, encode_given
from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.meta import Condition, ConditionStatus, Metadata
from gpujob_api.summary import Summary
from gpujob_operator.decide.model.conditions import ACCEPTED
from gpujob_operator.decide.model.plan import RejectJob, WriteQueueStatus, WriteStatus
from gpujob_operator.render.patch import merge_patch

# Shown by `kubectl get` whatever they are.
_ALWAYS = ("phase", "attempt")


def status_patch(write: WriteStatus) -> dict[str, Any]:
    """What is at its default is left out, and removed where it was something else."""
    before = write.job.status
    known = _given(before)
    if before.observed_at is None:
        # A job without any status.
        known = {name: value for name, value in known.items() if name not in _ALWAYS}
    return _with_precondition(write.job.metadata, merge_patch(known, _given(write.status)))


def _given(status: GPUJobStatus) -> dict[str, Any]:
    always = {"phase": status.phase.value, "attempt": status.attempt}
    return {**always, **encode_given(status)}


def rejection_patch(reject: RejectJob, now: datetime) -> dict[str, Any]:
    """Accepted=False naming the field, for a job that the API types reject (I10)."""
    metadata = reject.job.metadata
    message = f"{reject.job.field}: {reject.job.problem}"[:1024]
    condition = Condition(
        type=ACCEPTED,
        status=ConditionStatus.FALSE,
        reason="InvalidSpec",
        message=message,
        last_transition_time=now,
        observed_generation=metadata.generation,
    )
    status = GPUJobStatus(
        phase=JobPhase.PENDING,
        observed_generation=metadata.generation,
        summary=Summary(reason=message[:200]),
        conditions=(condition,),
        observed_at=now,
    )
    wanted = encode(status)
    # The phase that an earlier, readable generation reached is kept.
    written = ("observedGeneration", "summary", "conditions", "observedAt")
    return _with_precondition(metadata, {name: wanted[name] for name in written})


def queue_patch(write: WriteQueueStatus) -> dict[str, Any]:
    change = merge_patch(encode(write.queue.status), encode(write.status))
    return _with_precondition(write.queue.metadata, change)


def _with_precondition(metadata: Metadata, status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": metadata.resource_version}, "status": status}
