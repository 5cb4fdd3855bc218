"""What the commands show of a GPUService."""

from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GateStatus, GPUService, ReplicaStatus, Traffic
from gpujob_api.quantities import format_count, format_memory
from gpujob_api.serving import Candidate
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import NotFoundError, UserError

Row = tuple[str, str]
ReplicaRow = tuple[str, str, str, str, str]
CandidateRow = tuple[str, str, str, str, str, str, str]

REPLICA_COLUMNS = ("REPLICA", "READY", "NODE", "ADDRESS", "WHY")
CANDIDATE_COLUMNS = ("BACKEND", "PRECISION", "SAMPLES/S", "BATCH", "MEMORY", "ERROR", "RESULT")


def job_named(cluster: Cluster, name: str) -> GPUJob:
    """Returns the job. The error for the name of a service has the command that lists its jobs."""
    try:
        return cluster.job(name)
    except NotFoundError as error:
        try:
            service = cluster.service(name)
        except UserError:
            # The user may not read services.
            service = None
        if service is None:
            raise
        command = f"kubectl gpujob report {name} -n {cluster.namespace}"
        raise NotFoundError(f"{error}; it is a GPUService: {command} lists its jobs") from None


def rows(service: GPUService) -> list[Row]:
    """Returns all rows except the tables."""
    status = service.status
    found: list[Row] = [(one.type, one.message) for one in status.conditions]
    if status.gate is not None:
        found.append(("Gate", _gate(status.gate)))
    if status.traffic is not None:
        found += _traffic(service, status.traffic)
    if status.summary.backend:
        found.append(("Backend", status.summary.backend))
    choice = status.choice
    if choice is not None:
        text = f"{choice.reason} " if choice.reason else ""
        seconds = f"({format_count(len(choice.candidates), 'candidate')}, {choice.seconds:.0f} s"
        found.append(("Chosen", f"{text}{seconds}, {choice.device or 'unknown device'})"))
    return found or [("Status", "not processed yet; is the operator running?")]


def _gate(gate: GateStatus) -> str:
    return f"{gate.name}, {gate.address or gate.message}"


def _traffic(service: GPUService, traffic: Traffic) -> list[Row]:
    objective = service.spec.objective
    parts = [f"{traffic.requests_per_second:.1f}/s"]
    if traffic.latency is not None:
        latency = traffic.latency
        parts.append(
            f"p50 {latency.p50_milliseconds:.1f} ms, p95 {latency.p95_milliseconds:.1f} ms, "
            f"p99 {latency.p99_milliseconds:.1f} ms"
        )
    if traffic.within_objective_percent is not None:
        parts.append(
            f"{traffic.within_objective_percent:.2f} % within "
            f"{objective.latency_milliseconds:g} ms (objective {objective.percentile:g} %)"
        )
    found = [("Requests", "; ".join(parts))]
    found.append(("Not answered", f"{traffic.refused} refused with 503, {traffic.failed} failed"))
    busy = f"{traffic.busy_percent:.0f} % of the time of a replica"
    if traffic.gpu_seconds_per_thousand is not None:
        busy += f", {traffic.gpu_seconds_per_thousand:.3g} s for 1,000 requests"
    return [*found, ("Execution", busy)]


def replicas(service: GPUService) -> list[ReplicaRow]:
    return [
        (one.name, _readiness(one), one.node, one.address, one.message)
        for one in service.status.replicas
    ]


def _readiness(one: ReplicaStatus) -> str:
    if one.parked:
        return "parked"
    return "yes" if one.ready else "no"


def candidates(service: GPUService) -> list[CandidateRow]:
    choice = service.status.choice
    return [_candidate(one) for one in choice.candidates] if choice is not None else []


def _candidate(one: Candidate) -> CandidateRow:
    time = one.time
    batch = ""
    if time is not None:
        batch = f"{time.fixed_milliseconds:.3g} + {time.per_sample_milliseconds:.3g} n ms"
    error = one.relative_error_percent
    return (
        one.backend,
        one.precision.value,
        f"{one.samples_per_second:.4g}" if one.samples_per_second is not None else "",
        batch,
        format_memory(one.memory_bytes) if one.memory_bytes is not None else "",
        f"{error:.2g} %" if error is not None else "",
        one.reason or ("accepted" if one.accepted else "refused"),
    )


def as_json(service: GPUService) -> dict[str, Any]:
    """Returns the same for programs."""
    metadata = service.metadata
    return {
        "namespace": metadata.namespace,
        "name": metadata.name,
        **encode(service.status),
    }
