"""The gate of a service whose last replica may stop: which pods are created and removed, and
whether the Service sends requests to them.

1. A gate that leaves, or ends, is replaced at once. One of an older revision is removed once one of
   the newest takes requests.
2. The Service selects the gate once it takes requests. Until then it selects the replicas, if any
   answers: a lost gate delays no request.
3. A gate that is not needed any more goes after the Service selects the replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_api.gate import GateReport
from gpujob_api.gpuservice import GateStatus, GPUService
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.gates import Gate, GateChanges, gate_name
from gpujob_operator.decide.model.service_plan import ServiceInputs
from gpujob_operator.decide.services.replicas import Replica

READY = "Ready"
# A gate reports every second. After this time its requests are unknown.
FRESH = timedelta(seconds=10)
# Ordinals that may be in use by pods that are still being deleted.
ORDINALS_MAX = 100


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests at all gates of a service.

    `idle_seconds` is the time without a request. It is None while a gate does not report, because
    that gate may have requests.
    """

    held: int = 0
    idle_seconds: float | None = None


def demand_of(gates: Sequence[Gate], now: datetime) -> Demand:
    """Returns the requests that the gates have. Reports older than `FRESH` count as missing."""
    running = [gate for gate in gates if not gate.pod.finished]
    fresh = fresh_reports(gates, now)
    held = sum(report.held for report in fresh)
    if not running or len(fresh) < len(running):
        return Demand(held)
    busy = any(report.held or report.forwarded for report in fresh)
    return Demand(held, 0.0 if busy else min(report.idle_seconds for report in fresh))


def fresh_reports(gates: Sequence[Gate], now: datetime) -> tuple[GateReport, ...]:
    """Returns the reports of the gates that run, without those older than `FRESH`."""
    return tuple(
        gate.report
        for gate in gates
        if not gate.pod.finished
        and gate.report is not None
        and gate.reported_at is not None
        and now - gate.reported_at <= FRESH
    )


def change_gates(inputs: ServiceInputs) -> GateChanges:
    """Returns the gates to create and to remove."""
    there = [gate.pod for gate in inputs.gates if not gate.pod.leaving]
    ended = [pod for pod in there if pod.finished]
    live = [pod for pod in there if not pod.finished]
    if not inputs.service.spec.replicas.may_be_none:
        unused = live if inputs.selects_gate is False else []
        return GateChanges(removes=(*ended, *unused))
    current = [pod for pod in live if pod.revision == inputs.gate_revision]
    others = [pod for pod in live if pod.revision != inputs.gate_revision]
    replaced = others if any(pod.ready for pod in current) else []
    surplus = sorted(current, key=lambda pod: (not pod.ready, pod.name))[1:]
    creates = () if current else _free_ordinals(inputs)
    return GateChanges(creates, (*ended, *replaced, *surplus))


def _free_ordinals(inputs: ServiceInputs) -> tuple[int, ...]:
    used = {gate.pod.name for gate in inputs.gates}
    service = inputs.service.metadata.name
    free = (one for one in range(ORDINALS_MAX) if gate_name(service, one) not in used)
    return tuple(one for one, _ in zip(free, range(1), strict=False))


def sends_to_gate(inputs: ServiceInputs) -> bool:
    """Returns whether the Service has to select the gate, and the replicas otherwise."""
    service = inputs.service
    open_gate = any(gate.pod.ready and not gate.pod.leaving for gate in inputs.gates)
    answered = service.status.ready_replicas > 0
    if service.spec.replicas.may_be_none:
        return open_gate or not answered
    return open_gate and not answered


def may_stop(
    service: GPUService, replicas: Sequence[Replica], demand: Demand, now: datetime
) -> bool:
    """Returns whether no replica is needed.

    All of them have to be parked, or to answer since `stopAfterSeconds` at least: one that starts,
    or waits for a GPU, is not stopped. Requests that came to a replica past the gate count, too.
    """
    after = service.spec.replicas.stop_after_seconds
    live = [one for one in replicas if one.live]
    if demand.idle_seconds is None or demand.idle_seconds < after or not live:
        return False
    if all(one.parked for one in live):
        return True
    if not all(one.ready for one in live):
        return False
    if any(one.report is not None and one.report.requests_per_second > 0 for one in live):
        return False
    return ready_for_seconds(service, now) >= after


def ready_for_seconds(service: GPUService, now: datetime) -> float:
    """Returns for how long the service has been ready. -1: it is not."""
    ready = conditions.find(service.status, READY)
    if ready is None or ready.status is not ConditionStatus.TRUE:
        return -1.0
    return (now - ready.last_transition_time).total_seconds()


def gate_status(service: GPUService, gates: Sequence[Gate]) -> GateStatus | None:
    """Returns the gate that takes requests, else the one that is expected to."""
    pods = sorted(
        (gate.pod for gate in gates), key=lambda pod: (not pod.ready, pod.leaving, pod.name)
    )
    if not pods:
        return None
    pod = pods[0]
    host = pod.addresses[0] if pod.ready and pod.addresses else ""
    host = f"[{host}]" if ":" in host else host
    return GateStatus(
        name=pod.name,
        ready=pod.ready,
        address=f"{host}:{service.spec.port}" if host else "",
        message="" if pod.ready else why_closed(gates),
    )


def why_closed(gates: Sequence[Gate]) -> str:
    """Returns why no gate takes requests."""
    if not gates:
        return "its pod is being created"
    pod = gates[-1].pod
    if pod.reason:
        return f"{pod.reason}: {pod.message}".rstrip(": ")
    if pod.leaving:
        return f"pod {pod.name} is being deleted"
    log = f"kubectl logs {pod.name} -n {pod.namespace}"
    return f"pod {pod.name} does not answer its readiness probe yet ({log})"
