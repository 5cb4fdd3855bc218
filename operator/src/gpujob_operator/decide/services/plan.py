"""One round of decisions about services: `plan_services`.

For each service:

1. Read its replicas, and the result of a measurement of backends if there is a new one.
2. Decide how many replicas the load needs, and which revision they have.
3. Create and remove replicas (`rollout`). A pause follows each replica that ended by itself.
   Create and remove the gate, if the service may have no replica (`gates`).
4. Start a measurement of backends once a replica answers, so that no user waits for it.
5. Write the status if it changed. Figures alone are written at intervals.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import JobPhase
from gpujob_api.gpuservice import GPUService, GPUServiceStatus
from gpujob_api.serving import BackendName, Choice
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.plan import EventNote, EventType
from gpujob_operator.decide.model.service_plan import (
    CreateJob,
    RemoveJob,
    Role,
    ServiceInputs,
    ServiceJob,
    ServicePlan,
    ServiceStep,
)
from gpujob_operator.decide.model.services import replica_name
from gpujob_operator.decide.model.snapshot import Parking
from gpujob_operator.decide.services.gates import change_gates, demand_of, may_stop, sends_to_gate
from gpujob_operator.decide.services.parking import not_woken, parking_of
from gpujob_operator.decide.services.refusal import refusal
from gpujob_operator.decide.services.replicas import (
    Replica,
    created_at,
    measurement_name,
    replicas_of,
)
from gpujob_operator.decide.services.revision import (
    choice_key,
    measuring_settings,
    revision_of,
    settings_of,
)
from gpujob_operator.decide.services.rollout import Rollout, roll_out
from gpujob_operator.decide.services.scale import scaled
from gpujob_operator.decide.services.status import (
    is_written_now,
    with_conditions,
    with_figures,
)

FAILURE_PAUSE_SECONDS = 10.0
FAILURE_PAUSE_SECONDS_MAX = 300.0
NODES_AVOIDED_MAX = 32
# From the deletion of a replica until its GPU is free: the delay of its drain, its last batches.
DRAIN_EXPECTED = timedelta(seconds=8)


def plan_services(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """Returns what to do for each service. Services that need nothing are left out."""
    given = tuple(inputs)
    steps = (step_of(one, now) for one in given)
    to_gate = (one.service.metadata.uid for one in given if sends_to_gate(one))
    changing = tuple(step for step in steps if step.changes)
    parking = (park for one in given for park in _parking(one, now))
    return ServicePlan(changing, frozenset(to_gate), tuple(parking))


def _parking(inputs: ServiceInputs, now: datetime) -> tuple[Parking, ...]:
    service, demand = inputs.service, demand_of(inputs.gates, now)
    replicas = replicas_of(inputs.jobs, service.status)
    return parking_of(service, replicas, inputs.gates, demand, inputs.waking_since, now)


def step_of(inputs: ServiceInputs, now: datetime) -> ServiceStep:
    service = inputs.service
    if service.metadata.deletion_timestamp is not None:
        # Its jobs belong to it, and are deleted with it.
        return ServiceStep(service)
    replicas = replicas_of(inputs.jobs, service.status)
    status, events = _with_choice(service, inputs.jobs)
    service = replace(service, status=status)
    settings = settings_of(service)
    revision = revision_of(service, settings)
    status, failures = _with_failures(status, replicas, revision, now)
    service = replace(service, status=status)
    stuck = not_woken(replicas, inputs.waking_since, now)
    wanted, status = _wanted(inputs, service, replicas, revision, now)
    refused = "" if service.spec.suspend else refusal(service.spec, inputs.configuration)
    draining = status.draining_until is not None and status.draining_until > now
    # The replicas of an earlier spec go on.
    rollout = Rollout()
    if not refused:
        rollout = roll_out(replicas, revision, wanted, now, without=stuck, draining=draining)
    if rollout.drains:
        status = replace(status, draining_until=now + DRAIN_EXPECTED)
    paused = status.next_replica_at is not None and status.next_replica_at > now
    nodes = _nodes_of(replicas)
    name = service.metadata.name
    creates = [
        CreateJob(
            service, replica_name(name, revision, one), Role.REPLICA, revision, settings, nodes
        )
        for one in (() if paused else rollout.creates)
    ]
    removes = [RemoveJob(replica.job, reason) for replica, reason in rollout.removes]
    removes += [RemoveJob(one.job, stuck[one.name]) for one in replicas if one.name in stuck]
    removes += _failed_to_remove(replicas, status)
    more, gone = ((), ()) if refused else _measurement(service, inputs.jobs, replicas)
    status = with_figures(inputs, status, replicas, revision, wanted, now)
    status = with_conditions(inputs, service, status, replicas, settings, now, refused)
    changes = is_written_now(inputs.service.status, status, now)
    written = replace(status, observed_at=now) if changes else None
    return ServiceStep(
        inputs.service,
        creates=(*creates, *more),
        removes=(*removes, *gone),
        gates=change_gates(inputs),
        status=written,
        events=(*events, *failures) if written is not None else (),
    )


def _nodes_of(replicas: tuple[Replica, ...]) -> tuple[str, ...]:
    """Returns the nodes on which live replicas are, so that one node is never all of them."""
    placements = (one.job.status.placement for one in replicas if one.live)
    workers = (worker for one in placements if one is not None for worker in one.workers)
    return tuple(sorted({worker.node for worker in workers}))[:NODES_AVOIDED_MAX]


def _wanted(
    inputs: ServiceInputs,
    service: GPUService,
    replicas: tuple[Replica, ...],
    revision: str,
    now: datetime,
) -> tuple[int, GPUServiceStatus]:
    spec, status = service.spec, service.status
    if spec.suspend or _none_is_needed(inputs, service, replicas, now):
        return 0, replace(status, fewer_since=None, fewer_replicas=0)
    if spec.optimize.backend is BackendName.EXTERNAL:
        # It reports no load, by which there could be more.
        return max(1, spec.replicas.minimum), replace(status, fewer_since=None, fewer_replicas=0)
    ready = [one for one in replicas if one.ready]
    reports = [one.report for one in ready if one.report is not None]
    # A replica that answers again brings its refusals of earlier with it.
    lasting = [one.report for one in ready if one.known is not None and one.known.ready]
    refused = sum(report.refused for report in lasting if report is not None)
    before = status.traffic.refused if status.traffic is not None else refused
    # Another revision is measured anew, and its processes count from 0.
    same = status.revision == revision
    scale = scaled(
        spec.replicas,
        status.wanted_replicas,
        reports,
        same and refused > before,
        status.fewer_since,
        status.fewer_replicas,
        now,
        some_silent=len(reports) < len(ready),
    )
    status = replace(status, fewer_since=scale.fewer_since, fewer_replicas=scale.fewer)
    return scale.wanted, status


def _none_is_needed(
    inputs: ServiceInputs, service: GPUService, replicas: tuple[Replica, ...], now: datetime
) -> bool:
    """Returns whether the service has no replica for lack of requests.

    A new service starts one: it shows that the model can be served, and backends are measured.
    """
    status = service.status
    if not service.spec.replicas.may_be_none or status.observed_generation == 0:
        return False
    demand = demand_of(inputs.gates, now)
    if status.wanted_replicas == 0:
        return demand.held == 0
    return may_stop(service, replicas, demand, now)


def _with_failures(
    status: GPUServiceStatus, replicas: tuple[Replica, ...], revision: str, now: datetime
) -> tuple[GPUServiceStatus, tuple[EventNote, ...]]:
    """Returns the status with the latest replica that ended by itself since the last round.

    The latest one is kept, because its pod's log has the reason. Those of an older revision delay
    no replica of the newest.
    """
    if status.revision != revision:
        # An edit may be the correction.
        status = replace(status, failures=0, next_replica_at=None)
    latest = max((one for one in replicas if one.finished), key=_ended_at, default=None)
    if latest is None or latest.name == status.last_failed:
        if status.failures and _has_recovered(status, replicas, latest, now):
            return replace(status, failures=0, next_replica_at=None), ()
        return status, ()
    text = f"{latest.name}: {latest.why_ended()}"
    if latest.revision != revision:
        note = EventNote("ReplicaEnded", text, EventType.WARNING)
        return replace(status, last_failed=latest.name), (note,)
    pause = backoff_seconds(FAILURE_PAUSE_SECONDS, status.failures, FAILURE_PAUSE_SECONDS_MAX)
    after = replace(
        status,
        failures=status.failures + 1,
        last_failed=latest.name,
        next_replica_at=now + timedelta(seconds=pause),
    )
    text = f"{text}; the next replica starts in {pause:.0f} s"
    return after, (EventNote("ReplicaEnded", text, EventType.WARNING),)


def _ended_at(replica: Replica) -> tuple[float, float, str]:
    ended_at = replica.job.status.finished_at
    return (ended_at.timestamp() if ended_at is not None else 0.0, *created_at(replica))


def _has_recovered(
    status: GPUServiceStatus,
    replicas: tuple[Replica, ...],
    latest: Replica | None,
    now: datetime,
) -> bool:
    """Returns whether a replica answers that was created after the latest one that failed, but not
    in the last minutes.

    Those from before the failure prove nothing: they answer although each new one fails. Neither
    does the first moment: a server may pass its probe and fail at its first request.
    """
    if status.next_replica_at is not None and status.next_replica_at > now:
        return False
    before = now.timestamp() - FAILURE_PAUSE_SECONDS_MAX
    return any(
        one.available
        and created_at(one)[0] <= before
        and (latest is None or created_at(one) > created_at(latest))
        for one in replicas
    )


def _failed_to_remove(replicas: tuple[Replica, ...], status: GPUServiceStatus) -> list[RemoveJob]:
    """Returns the replicas that ended by themselves, except the newest."""
    ended = (one for one in replicas if one.finished and one.name != status.last_failed)
    return [
        RemoveJob(one.job, "it has ended")
        for one in ended
        if one.job.metadata.deletion_timestamp is None
    ]


def _measurement(
    service: GPUService, jobs: tuple[ServiceJob, ...], replicas: tuple[Replica, ...]
) -> tuple[tuple[CreateJob, ...], tuple[RemoveJob, ...]]:
    """Returns the measurement of backends to start, and those that are of no use any more."""
    key = choice_key(service)
    name = measurement_name(service.metadata.name, key)
    known = {replica.name for replica in replicas}
    others = [one for one in jobs if one.job.metadata.name not in known]
    decided = service.status.choice_key == key
    wanted = service.spec.optimize.measures and not service.spec.suspend
    # A failed one is kept for its log until the spec changes.
    kept = wanted and (not decided or bool(service.status.choice_problem))
    removes = tuple(
        RemoveJob(one.job, "its measurement is not needed any more")
        for one in others
        if one.job.metadata.deletion_timestamp is None
        and not (kept and one.job.metadata.name == name)
    )
    exists = any(one.job.metadata.name == name for one in others)
    if not wanted or decided or exists or not any(one.ready for one in replicas):
        return (), removes
    settings = measuring_settings(service)
    return (CreateJob(service, name, Role.MEASUREMENT, key, settings),), removes


def _with_choice(
    service: GPUService, jobs: tuple[ServiceJob, ...]
) -> tuple[GPUServiceStatus, tuple[EventNote, ...]]:
    """Returns the status with the result of a measurement that has ended."""
    status, key = service.status, choice_key(service)
    if status.choice_key == key or not service.spec.optimize.measures:
        return status, ()
    name = measurement_name(service.metadata.name, key)
    found = next((one for one in jobs if one.job.metadata.name == name), None)
    if found is None or not (found.job.finished or found.report is not None):
        return status, ()
    choice = found.report.choice if found.report is not None else None
    if choice is not None and found.job.status.phase is JobPhase.SUCCEEDED:
        after = replace(status, choice=choice, choice_key=key, choice_problem="")
        return after, (EventNote("BackendChosen", in_words(choice)),)
    if not found.job.finished:
        return status, ()
    failure = found.job.status.failure
    problem = failure.message if failure is not None else "it ended without a result"
    after = replace(status, choice=None, choice_key=key, choice_problem=problem)
    text = f"{name}: {problem}; the replicas run the model as written"
    return after, (EventNote("MeasurementFailed", text, EventType.WARNING),)


def in_words(choice: Choice) -> str:
    refused = sum(not one.accepted for one in choice.candidates)
    text = f"{choice.backend.value} in {choice.precision.value}"
    measured = f"{len(choice.candidates)} candidates, {refused} refused, {choice.seconds:.0f} s"
    reason = f": {choice.reason}" if choice.reason else ""
    return f"{text} ({measured}){reason}"
