"""Renders statuses. The snapshot's resourceVersion is the precondition of each.

A status is replaced as a whole. This costs the API server less than a merge patch
(`bench.throughput.calls`), and the same request is correct whatever status the API server has
stored.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpujob_api.codec import encode, encode_given
from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.manifest import GPUJOB, GPUQUEUE, Resource
from gpujob_api.meta import API_VERSION, Condition, ConditionStatus, Metadata
from gpujob_api.summary import Summary
from gpujob_api.unknown_fields import with_unknown_fields
from gpujob_operator.decide.model.conditions import ACCEPTED
from gpujob_operator.decide.model.plan import RejectJob, WriteQueueStatus, WriteStatus


def job_status(write: WriteStatus, unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the job with the status, without fields at their defaults.

    `unknown` are the fields of the stored status that this version does not know. They are kept.
    """
    status = write.status
    # `kubectl get` always shows these.
    always = {"phase": status.phase.value, "attempt": status.attempt}
    given = with_unknown_fields(GPUJobStatus, {**always, **encode_given(status)}, unknown)
    return replacement(GPUJOB, write.job.metadata, given)


def rejection(reject: RejectJob, stored: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Returns Accepted=False with the field, for a job that the API types reject (I10).

    The rest of the `stored` status may be unreadable too, and is kept.
    """
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
    changed = {name: wanted[name] for name in written}
    # It does not start.
    kept = {name: value for name, value in stored.items() if name != "start"}
    return replacement(GPUJOB, metadata, {**kept, **changed})


def queue_status(write: WriteQueueStatus, unknown: Mapping[str, Any]) -> dict[str, Any]:
    status = with_unknown_fields(GPUQueueStatus, encode(write.status), unknown)
    return replacement(GPUQUEUE, write.queue.metadata, status)


def replacement(
    resource: Resource, metadata: Metadata, status: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the object with this status, for a request to replace it.

    The API server takes everything else from the stored object.
    """
    named = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
    preconditions = {"resourceVersion": metadata.resource_version}
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "metadata": {name: text for name, text in (named | preconditions).items() if text},
        "status": dict(status),
    }
