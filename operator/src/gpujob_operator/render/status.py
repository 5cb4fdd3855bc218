"""Renders status patches. The snapshot's resourceVersion is the precondition of each."""

from datetime import datetime
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.meta import Condition, ConditionStatus, Metadata
from gpujob_api.summary import Summary
from gpujob_operator.decide.model.conditions import ACCEPTED
from gpujob_operator.decide.model.plan import RejectJob, WriteQueueStatus, WriteStatus
from gpujob_operator.render.patch import merge_patch


def status_patch(write: WriteStatus) -> dict[str, Any]:
    # A job without any status: a value that equals its default must still be written.
    known = encode(write.job.status) if write.job.status.observed_at is not None else {}
    return _with_precondition(write.job.metadata, merge_patch(known, encode(write.status)))


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
