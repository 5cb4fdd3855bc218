"""The status of a service: figures of its replicas, and conditions."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from textwrap import shorten

from gpujob_api.gpuservice import (
    GPUService,
    GPUServiceStatus,
    ReplicaStatus,
    ServiceSummary,
    Traffic,
)
from gpujob_api.meta import Condition
from gpujob_api.quantities import format_count
from gpujob_api.serving import (
    WITH_A_FILE,
    BackendName,
    RequestLatency,
    ServingReport,
    ServingSettings,
)
from gpujob_api.settings import Precision
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionSetter
from gpujob_operator.decide.model.service_plan import ServiceInputs
from gpujob_operator.decide.services.gates import READY, gate_status, why_closed
from gpujob_operator.decide.services.parking import why_it_stays
from gpujob_operator.decide.services.replicas import Replica, measurement_name
from gpujob_operator.decide.services.revision import choice_in_force, choice_key

ACCEPTED = conditions.ACCEPTED
PROGRESSING = "Progressing"
BACKEND_CHOSEN = "BackendChosen"

# Figures alone are written at this interval.
FIGURES_EVERY = timedelta(seconds=10)
# After this time without completion, a rollout counts as stuck, and the reason is in the condition.
STUCK_AFTER = timedelta(minutes=10)
REASON_CHARACTERS_MAX = 200
REQUESTS_FAILING = "RequestsFailing"
_BUT = ", but "
# Fewer requests show nothing about a service.
REQUESTS_MIN = 20
ERROR_CHARACTERS_MAX = 256


def with_figures(
    inputs: ServiceInputs,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    revision: str,
    wanted: int,
    now: datetime,
) -> GPUServiceStatus:
    service = inputs.service
    shown = [one for one in replicas if not one.finished]
    ready = [one for one in shown if one.ready]
    available = [one for one in shown if one.available]
    updated = sum(one.revision == revision for one in available)
    complete = updated >= wanted and len(shown) == len(available) == updated
    reports = [one.report for one in ready if one.report is not None]
    return replace(
        status,
        observed_generation=service.metadata.generation,
        revision=revision,
        wanted_replicas=wanted,
        ready_replicas=len(ready),
        updated_replicas=updated,
        replicas=tuple(_replica(one, service.spec.port, now) for one in shown),
        gate=gate_status(service, inputs.gates),
        traffic=_traffic(reports, status.traffic),
        rollout_since=None if complete else _rollout_since(status, revision) or now,
    )


def _rollout_since(status: GPUServiceStatus, revision: str) -> datetime | None:
    return status.rollout_since if status.revision == revision else None


def _replica(one: Replica, port: int, now: datetime) -> ReplicaStatus:
    address = one.pod.addresses[0] if one.available and one.pod and one.pod.addresses else ""
    host = f"[{address}]" if ":" in address else address
    node = one.pod.node if one.pod is not None and one.pod.node else ""
    return ReplicaStatus(
        name=one.name,
        revision=one.revision,
        ready=one.ready,
        parked=one.has_moved,
        unavailable_since=one.unavailable_since(now),
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
    inputs: ServiceInputs,
    service: GPUService,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    settings: ServingSettings,
    now: datetime,
    refused: str = "",
) -> GPUServiceStatus:
    """Returns the status with its conditions and summary. `refused` is why no replica is created of
    the spec.
    """
    writer = ConditionSetter(status.conditions, service.metadata.generation, now)
    if refused:
        inputs = replace(inputs, problem=refused)
        writer.set(ACCEPTED, False, "InvalidSpec", refused)
    else:
        writer.set(ACCEPTED, True, "Valid", "the spec is valid")
    failed = _failed_words(service, status, replicas)
    reason = _ready(writer, inputs, status, replicas, failed)
    reason = _progressing(writer, status, replicas, inputs.problem or failed, now) or reason
    _backend(writer, inputs, status)
    summary = ServiceSummary(
        ready=f"{status.ready_replicas}/{status.wanted_replicas}",
        backend=_backend_words(settings),
        latency=_latency(service, status, replicas),
        reason=_short(reason),
    )
    return replace(status, conditions=writer.conditions, summary=summary)


def _failed_words(
    service: GPUService, status: GPUServiceStatus, replicas: Sequence[Replica]
) -> str:
    """Returns why the latest replica ended by itself, or "" if none did since the last success."""
    if not status.failures:
        return ""
    latest = next((one for one in replicas if one.name == status.last_failed), None)
    if latest is None:
        return ""
    log = f"kubectl gpujob logs {latest.name} -n {service.metadata.namespace}"
    return f"{latest.name} ended by itself: {latest.why_ended()} ({log})"


def _ready(
    writer: ConditionSetter,
    inputs: ServiceInputs,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    failed: str,
) -> str:
    """Sets Ready. Returns why the service is not ready, or ""."""
    ready, wanted, problem = status.ready_replicas, status.wanted_replicas, inputs.problem
    verb = "answers" if wanted == 1 else "answer"
    count = f"{ready} of {format_count(wanted, 'replica')} {verb} requests"
    if inputs.service.spec.suspend:
        writer.set(READY, False, "Suspended", "spec.suspend is true: no replica runs")
        return "suspended"
    if inputs.front_problem:
        text = f"{count}, but no Service sends requests to them: {inputs.front_problem}"
        writer.set(READY, False, "ServiceRejected", text)
        return inputs.front_problem
    if ready == 0 and (closed := _closed(inputs, status)):
        writer.set(READY, False, "GateNotReady", f"no gate takes requests: {closed}")
        return closed
    if ready == 0 and (asleep := _asleep(writer, inputs.service, wanted, replicas)):
        return asleep
    failing = _failing_words(writer, inputs.service.metadata.namespace, replicas)
    if failing:
        writer.set(READY, False, "RequestsFailing", f"{count}{_BUT}{failing}")
        return "the model fails for most requests"
    if ready >= wanted:
        stays = _staying_words(inputs.service, replicas)
        writer.set(READY, True, "ReplicasReady", f"{count}{stays}")
        return problem
    # If some answer, but fewer than wanted, requests are served.
    if problem:
        text = f"{count}; a replica was not created: {problem}"
        writer.set(READY, ready > 0, "ReplicaRejected", text)
        return problem
    unready = next((one for one in replicas if not one.ready and not one.finished), None)
    if failed:
        # The next one probably ends in the same way, so its state is less useful.
        why = failed
    elif unready is not None:
        why = f"{unready.name}: {unready.why_not_ready()}"
    else:
        why = "replicas are being created"
    kind = "ReplicasStarting" if status.failures == 0 else "ReplicasFailing"
    writer.set(READY, ready > 0, kind, f"{count}; {why}")
    return why


def _failing_words(writer: ConditionSetter, namespace: str, replicas: Sequence[Replica]) -> str:
    """Returns that most requests of the last minute failed, with the newest error, or "".

    Refused requests and wrong ones (4xx) do not count. Once reported, fewer requests suffice, so
    that the condition does not alternate at a low load. A minute without requests shows nothing:
    the text stays while a replica answers that was there when it was first reported.
    """
    reports = [(one.name, one.report) for one in replicas if one.ready and one.report is not None]
    requests = sum(report.recent_requests for _, report in reports)
    failed = sum(report.recent_failed for _, report in reports)
    before = conditions.find(writer, READY)
    if before is not None and before.reason != REQUESTS_FAILING:
        before = None
    if before is not None and not requests and any(_is_older(one, before) for one in replicas):
        return before.message.partition(_BUT)[2]
    if requests < (REQUESTS_MIN if before is None else 1) or 2 * failed <= requests:
        return ""
    name, worst = max(reports, key=lambda one: one[1].recent_failed)
    return (
        f"{failed} of the last {requests} requests failed: "
        f"{worst.recent_error[:ERROR_CHARACTERS_MAX]}; correct the script or the model and edit "
        f"the GPUService (kubectl gpujob logs {name} -n {namespace} has a traceback)"
    )


def _is_older(replica: Replica, condition: Condition) -> bool:
    """Returns whether the replica answers, and did when the condition turned."""
    since = replica.job.status.attempt_started_at
    return replica.ready and since is not None and since <= condition.last_transition_time


def _closed(inputs: ServiceInputs, status: GPUServiceStatus) -> str:
    """Returns why no gate takes requests, or "" if one does or none is needed."""
    open_gate = status.gate is not None and status.gate.ready
    if open_gate or not inputs.service.spec.replicas.may_be_none:
        return ""
    return inputs.gate_problem or why_closed(inputs.gates)


def _asleep(
    writer: ConditionSetter, service: GPUService, wanted: int, replicas: Sequence[Replica]
) -> str:
    """Sets Ready if no replica answers for lack of requests. Returns the reason, or ""."""
    if wanted == 0:
        writer.set(READY, False, "ScaledToZero", _at_zero(service))
        return "scaled to zero; a request starts a replica"
    if any(one.parked for one in replicas):
        writer.set(READY, False, "Parked", _parked_words(service))
        return "parked; a request wakes it"
    return ""


def _at_zero(service: GPUService) -> str:
    replicas = service.spec.replicas
    return (
        f"no replica runs, because there was no request for {replicas.stop_after_seconds} s; the "
        f"next request starts one, and waits for it up to {replicas.cold_start_seconds} s"
    )


def _staying_words(service: GPUService, replicas: Sequence[Replica]) -> str:
    """Returns why the replicas do not park although the spec asks for it, or ""."""
    if service.spec.replicas.park_after_seconds is None:
        return ""
    reasons = ((one.name, why_it_stays(one)) for one in replicas if one.ready)
    name, reason = next(((name, why) for name, why in reasons if why), ("", ""))
    return f"; no replica parks while {name} does not: {reason}" if reason else ""


def _parked_words(service: GPUService) -> str:
    seconds = service.spec.replicas.park_after_seconds
    since = f"there was no request for {seconds} s" if seconds is not None else "it is waking"
    return f"no replica answers, because {since}; the next request wakes one"


def _progressing(
    writer: ConditionSetter,
    status: GPUServiceStatus,
    replicas: Sequence[Replica],
    problem: str,
    now: datetime,
) -> str:
    """Sets Progressing. `problem` is why the latest replica failed, or why none is created.
    Returns why a rollout fails or is stuck, or "".
    """
    since = status.rollout_since
    if since is None:
        writer.set(PROGRESSING, False, "Complete", f"all replicas have revision {status.revision}")
        return ""
    text = f"{status.updated_replicas} of {status.wanted_replicas} have revision {status.revision}"
    unready = (one for one in replicas if one.revision == status.revision and not one.ready)
    waiting = problem or next((f"{one.name}: {one.why_not_ready()}" for one in unready), "")
    if now - since < STUCK_AFTER:
        writer.set(PROGRESSING, True, "Updating", f"{text}; {waiting}".rstrip("; "))
        return problem
    minutes = STUCK_AFTER.total_seconds() / 60
    why = f"{text}, for more than {minutes:.0f} min; {waiting}".rstrip("; ")
    writer.set(PROGRESSING, False, "Stuck", why)
    return why


def _backend(writer: ConditionSetter, inputs: ServiceInputs, status: GPUServiceStatus) -> None:
    service = inputs.service
    key = choice_key(service)
    if not service.spec.optimize.measures:
        text = "spec.optimize.backend names the backend"
        built = _built_words(service, service.spec.optimize.backend)
        writer.set(BACKEND_CHOSEN, True, "Given", f"{text}{built}")
    elif status.choice_key != key:
        # What was measured for an earlier spec is in the status, but no new replica has it.
        kept = choice_in_force(service)
        runs = "the model runs as written" if kept is None else f"{kept.backend.value} stays"
        text = f"{_measuring_words(inputs, key)}; until then {runs}"
        writer.set(BACKEND_CHOSEN, None, "Measuring", text)
    elif status.choice is not None:
        choice = status.choice
        text = f"{choice.backend.value} in {choice.precision.value} on {choice.device}"
        text += _built_words(service, choice.backend)
        writer.set(BACKEND_CHOSEN, True, "Measured", text)
    else:
        text = f"the measurement failed: {status.choice_problem}; the model runs as written"
        writer.set(BACKEND_CHOSEN, False, "MeasurementFailed", text)


def _built_words(service: GPUService, backend: BackendName) -> str:
    """Returns that each start builds the backend anew, with the next step, or ""."""
    if backend not in WITH_A_FILE or service.spec.artifacts_claim_name is not None:
        return ""
    return (
        "; each replica builds it before it answers, for minutes if the model is large: "
        "spec.artifactsClaimName names a claim that keeps it"
    )


def _measuring_words(inputs: ServiceInputs, key: str) -> str:
    name = measurement_name(inputs.service.metadata.name, key)
    job = next((one.job for one in inputs.jobs if one.job.metadata.name == name), None)
    if job is None:
        return "backends are measured once a replica answers"
    scheduled = conditions.find(job.status, conditions.SCHEDULED)
    if job.status.placement is None and scheduled is not None:
        return f"{name} waits to measure backends: {scheduled.reason}: {scheduled.message}"
    return f"{name} measures backends"


def _short(reason: str) -> str:
    """Returns the reason in the width of a column, cut between words."""
    return shorten(reason, REASON_CHARACTERS_MAX, placeholder=" ...")


def _backend_words(settings: ServingSettings) -> str:
    if settings.precision is Precision.AUTO:
        return settings.backend.value
    return f"{settings.backend.value} {settings.precision.value}"


def _latency(service: GPUService, status: GPUServiceStatus, replicas: Sequence[Replica]) -> str:
    """Returns figures of the last minute alone. `Traffic.failed` counts from the start."""
    traffic = status.traffic
    if traffic is None or traffic.latency is None:
        return ""
    text = f"p99 {traffic.latency.p99_milliseconds:.0f} ms"
    if traffic.within_objective_percent is None:
        return text
    limit = service.spec.objective.latency_milliseconds
    text = f"{text}, {traffic.within_objective_percent:.1f} % within {limit:g} ms"
    failed = sum(one.report.recent_failed for one in replicas if one.ready and one.report)
    return f"{text}, {failed} failed" if failed else text


def is_written_now(before: GPUServiceStatus, after: GPUServiceStatus, now: datetime) -> bool:
    """Returns whether to write the status: at once for a change, at intervals for figures."""
    if _without_figures(before) != _without_figures(after):
        return True
    figures = before.traffic, before.summary, before.conditions
    if figures == (after.traffic, after.summary, after.conditions):
        return False
    return before.observed_at is None or now - before.observed_at >= FIGURES_EVERY


def _without_figures(status: GPUServiceStatus) -> GPUServiceStatus:
    summary = replace(status.summary, latency="")
    # This message has figures.
    still = tuple(
        replace(one, message="") if one.reason == REQUESTS_FAILING else one
        for one in status.conditions
    )
    return replace(status, traffic=None, summary=summary, observed_at=None, conditions=still)
