"""The status of a service: figures of its replicas, and conditions."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpuservice import (
    GPUService,
    GPUServiceStatus,
    ReplicaStatus,
    ServiceSummary,
    Traffic,
)
from gpujob_api.quantities import format_count
from gpujob_api.serving import RequestLatency, ServingReport, ServingSettings
from gpujob_api.settings import Precision
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionSetter
from gpujob_operator.decide.services.replicas import Replica

ACCEPTED = conditions.ACCEPTED
READY = "Ready"
PROGRESSING = "Progressing"
BACKEND_CHOSEN = "BackendChosen"

# Figures alone are written at this interval.
FIGURES_EVERY = timedelta(seconds=10)
# After this time without completion, a rollout counts as stuck, and the reason is in the condition.
STUCK_AFTER = timedelta(minutes=10)


def with_figures(
    service: GPUService,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    revision: str,
    wanted: int,
    now: datetime,
) -> GPUServiceStatus:
    shown = [one for one in replicas if not one.finished]
    ready = [one for one in shown if one.ready]
    updated = sum(one.revision == revision for one in ready)
    complete = updated >= wanted and len(shown) == len(ready) == updated
    reports = [one.report for one in ready if one.report is not None]
    return replace(
        status,
        observed_generation=service.metadata.generation,
        revision=revision,
        wanted_replicas=wanted,
        ready_replicas=len(ready),
        updated_replicas=updated,
        replicas=tuple(_replica(one, service.spec.port) for one in shown),
        traffic=_traffic(reports, status.traffic),
        rollout_since=None if complete else status.rollout_since or now,
    )


def _replica(one: Replica, port: int) -> ReplicaStatus:
    address = one.pod.addresses[0] if one.ready and one.pod and one.pod.addresses else ""
    host = f"[{address}]" if ":" in address else address
    node = one.pod.node if one.pod is not None and one.pod.node else ""
    return ReplicaStatus(
        name=one.name,
        revision=one.revision,
        ready=one.ready,
        address=f"{host}:{port}" if host else "",
        node=node,
        message="" if one.ready else one.why_not_ready(),
    )


def _traffic(reports: Sequence[ServingReport], before: Traffic | None) -> Traffic | None:
    """Returns what the replicas answered together. Without reports, it is unknown."""
    if not reports:
        return None if before is None else replace(before, requests_per_second=0.0)
    rate = sum(one.requests_per_second for one in reports)
    weighed = [
        (one.requests_per_second, one.within_objective_percent)
        for one in reports
        if one.within_objective_percent is not None and one.requests_per_second > 0
    ]
    total = sum(weight for weight, _ in weighed)
    within = sum(weight * percent for weight, percent in weighed) / total if total else None
    latencies = [one.latency for one in reports if one.latency is not None]
    busy = sum(one.busy_percent for one in reports)
    return Traffic(
        requests_per_second=round(rate, 1),
        within_objective_percent=None if within is None else round(within, 2),
        latency=max(latencies, key=_p99, default=None),
        busy_percent=round(busy / len(reports), 1),
        refused=sum(one.refused for one in reports),
        failed=sum(one.failed for one in reports),
        gpu_seconds_per_thousand=round(busy / 100 / rate * 1000, 3) if rate > 0 else None,
    )


def _p99(latency: RequestLatency) -> float:
    return latency.p99_milliseconds


def with_conditions(
    service: GPUService,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    settings: ServingSettings,
    problem: str,
    now: datetime,
) -> GPUServiceStatus:
    """Returns the status with its conditions and summary."""
    writer = ConditionSetter(status.conditions, service.metadata.generation, now)
    writer.set(ACCEPTED, True, "Valid", "the spec is valid")
    reason = _ready(writer, service, status, replicas, problem)
    reason = _progressing(writer, status, replicas, now) or reason
    _backend(writer, service, status)
    summary = ServiceSummary(
        ready=f"{status.ready_replicas}/{status.wanted_replicas}",
        backend=_backend_words(settings),
        latency=_latency(service, status),
        reason=reason[:200],
    )
    return replace(status, conditions=writer.conditions, summary=summary)


def _ready(
    writer: ConditionSetter,
    service: GPUService,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    problem: str,
) -> str:
    """Sets Ready. Returns why the service is not ready, or ""."""
    ready, wanted = status.ready_replicas, status.wanted_replicas
    count = f"{ready} of {format_count(wanted, 'replica')} answer requests"
    if service.spec.suspend:
        writer.set(READY, False, "Suspended", "spec.suspend is true: no replica runs")
        return "suspended"
    if ready >= wanted:
        writer.set(READY, True, "ReplicasReady", count)
        return problem
    if problem:
        writer.set(
            READY, False, "ReplicaRejected", f"{count}; a replica was not created: {problem}"
        )
        return problem
    unready = next((one for one in replicas if not one.ready and not one.finished), None)
    ended = next((one for one in reversed(replicas) if one.finished), None)
    if unready is not None:
        why = f"{unready.name}: {unready.why_not_ready()}"
    elif ended is not None:
        failure = ended.job.status.failure
        message = failure.message if failure is not None else "it ended with exit code 0"
        log = f"kubectl gpujob logs {ended.name} -n {service.metadata.namespace}"
        why = f"{ended.name} ended by itself: {message} ({log})"
    else:
        why = "replicas are being created"
    # Some answer, but fewer than wanted: requests are served.
    kind = "ReplicasStarting" if status.failures == 0 else "ReplicasFailing"
    writer.set(READY, ready > 0, kind, f"{count}; {why}")
    return why


def _progressing(
    writer: ConditionSetter, status: GPUServiceStatus, replicas: Sequence[Replica], now: datetime
) -> str:
    """Sets Progressing. Returns why a rollout is stuck, or ""."""
    since = status.rollout_since
    if since is None:
        writer.set(PROGRESSING, False, "Complete", f"all replicas have revision {status.revision}")
        return ""
    text = f"{status.updated_replicas} of {status.wanted_replicas} have revision {status.revision}"
    if now - since < STUCK_AFTER:
        writer.set(PROGRESSING, True, "Updating", text)
        return ""
    unready = (one for one in replicas if one.revision == status.revision and not one.ready)
    waiting = next((f"{one.name}: {one.why_not_ready()}" for one in unready), "")
    minutes = STUCK_AFTER.total_seconds() / 60
    why = f"{text}, for more than {minutes:.0f} min; {waiting}".rstrip("; ")
    writer.set(PROGRESSING, False, "Stuck", why)
    return why


def _backend(writer: ConditionSetter, service: GPUService, status: GPUServiceStatus) -> None:
    if not service.spec.optimize.measures:
        writer.set(BACKEND_CHOSEN, True, "Given", "spec.optimize.backend names the backend")
    elif status.choice_problem:
        text = f"the measurement failed: {status.choice_problem}; the model runs as written"
        writer.set(BACKEND_CHOSEN, False, "MeasurementFailed", text)
    elif status.choice is not None and status.choice_key:
        choice = status.choice
        text = f"{choice.backend.value} in {choice.precision.value} on {choice.device}"
        writer.set(BACKEND_CHOSEN, True, "Measured", text)
    else:
        text = "backends are measured once a replica answers; until then the model runs as written"
        writer.set(BACKEND_CHOSEN, None, "Measuring", text)


def _backend_words(settings: ServingSettings) -> str:
    if settings.precision is Precision.AUTO:
        return settings.backend.value
    return f"{settings.backend.value} {settings.precision.value}"


def _latency(service: GPUService, status: GPUServiceStatus) -> str:
    traffic = status.traffic
    if traffic is None or traffic.latency is None:
        return ""
    text = f"p99 {traffic.latency.p99_milliseconds:.0f} ms"
    if traffic.within_objective_percent is None:
        return text
    limit = service.spec.objective.latency_milliseconds
    return f"{text}, {traffic.within_objective_percent:.1f} % within {limit:g} ms"


def is_written_now(before: GPUServiceStatus, after: GPUServiceStatus, now: datetime) -> bool:
    """Returns whether to write the status: at once for a change, at intervals for figures."""
    if _without_figures(before) != _without_figures(after):
        return True
    if before.traffic == after.traffic and before.summary == after.summary:
        return False
    return before.observed_at is None or now - before.observed_at >= FIGURES_EVERY


def _without_figures(status: GPUServiceStatus) -> GPUServiceStatus:
    summary = replace(status.summary, latency="")
    return replace(status, traffic=None, summary=summary, observed_at=None)
