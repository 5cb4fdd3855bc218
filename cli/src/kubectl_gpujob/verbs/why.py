"""kubectl gpujob why: why the job is pending, or how it ended, with the operator's numbers."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import WORKER_CONTAINER, GPUJob, JobPhase
from gpujob_api.meta import LABEL_ATTEMPT, LABEL_JOB_UID, Condition, ConditionStatus
from gpujob_operator.decide.model.conditions import (
    ACCEPTED,
    FAILED,
    FINISHED,
    RUNNING,
    SCHEDULED,
    SUCCEEDED,
    SUSPENDED,
    find,
)
from gpujob_operator.decide.model.next_steps import next_step
from gpujob_operator.decide.model.pending_reasons import NO_TURN
from gpujob_operator.decide.model.starts import shown_range
from kubectl_gpujob import text
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE, UsageError, UserError
from kubectl_gpujob.grammar import World, add_output, add_source, add_target
from kubectl_gpujob.services import job_named
from kubectl_gpujob.starts import start_text

Row = tuple[str, str]
NOT_PROCESSED = "has not processed this job yet; is the operator running?"
_DECISIVE = {
    JobPhase.PENDING: SCHEDULED,
    JobPhase.SUCCEEDED: SUCCEEDED,
    JobPhase.FAILED: FAILED,
}
_ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)
# Conditions that say no more than the phase.
_REPEATING = frozenset({SUCCEEDED, FAILED, FINISHED, SUSPENDED})


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    parser.add_argument(
        "--places",
        action="store_true",
        help="show the placement score, runners-up, and why other nodes were rejected",
    )
    parser.add_argument(
        "--sooner",
        action="store_true",
        help="show changes of the job that make it start sooner, each tried by simulation",
    )
    add_source(parser)
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    if options.places and options.sooner:
        raise UsageError("--places and --sooner exclude each other")
    if options.places or options.sooner or options.source is not None:
        return _explained(options, world)
    if options.configuration is not None:
        raise UsageError("--configuration is only valid with --places, --sooner or --from")
    cluster, screen = world.cluster(options), world.screen
    job = job_named(cluster, options.name)
    now, others = world.now(), _queue(cluster)
    place = position(job, others)
    start = start_text(job, others, now)
    if options.output == "json":
        screen.json(as_json(job, place, now))
    else:
        screen.rows(headline(job, now), rows(job, place, now, start))
    return EXIT_DONE


def _explained(options: argparse.Namespace, world: World) -> int:
    """Shows the job's placement next to others, or the changes that make it start sooner."""
    # Before anything is read, because they need NumPy, which may be missing.
    from kubectl_gpujob import places, sooner
    from kubectl_gpujob.observations import observation_from_cluster, observation_from_dump

    if options.source is None:
        cluster = world.cluster(options)
        observation = observation_from_cluster(cluster, options.configuration)
        name = f"{cluster.namespace}/{options.name}"
    else:
        observation = observation_from_dump(options.source, options.configuration)
        within = f"{options.namespace}/" if options.namespace else ""
        name = f"{within}{options.name}"
    if options.sooner:
        tried = sooner.found(observation, name)
        title, lines = sooner.headline(tried, observation), sooner.rows(tried)
        data = sooner.as_json(tried)
    else:
        found = places.found(observation, name)
        title, lines = places.headline(found, observation), places.rows(found)
        data = places.as_json(found)
    if options.output == "json":
        world.screen.json(data)
    else:
        world.screen.rows(title, lines)
    return EXIT_DONE


def _queue(cluster: Cluster) -> Sequence[GPUJob]:
    """Returns all jobs, or only those of the namespace if other namespaces may not be listed."""
    try:
        return cluster.jobs(all_namespaces=True)
    except UserError:
        return cluster.jobs()


@dataclass(frozen=True, slots=True)
class Position:
    """The job's position among the pending jobs of its queue; 1 is next."""

    place: int
    waiting: int


def position(job: GPUJob, others: Iterable[GPUJob]) -> Position | None:
    """Returns the position by priority, then age; None if the job is not pending.

    The operator may let a later job backfill, so the position shows which jobs are ahead, not when
    the job starts.
    """
    order = in_queue_order(others, job.spec.queue)
    places = [n for n, other in enumerate(order, 1) if other.metadata.uid == job.metadata.uid]
    return Position(places[0], len(order)) if places else None


def in_queue_order(jobs: Iterable[GPUJob], queue: str) -> list[GPUJob]:
    """Returns the pending jobs of the queue by priority, then age."""
    pending = (job for job in jobs if _waits(job) and job.spec.queue == queue)
    return sorted(pending, key=priority_and_age)


def priority_and_age(job: GPUJob) -> tuple[int, datetime, str]:
    created = job.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
    return -job.spec.priority, created, job.metadata.uid


def headline(job: GPUJob, now: datetime) -> str:
    return f"{job.metadata.key} {state(job, now)}"


def state(job: GPUJob, now: datetime) -> str:
    """Returns what the job does, for how long, and the reason in one word."""
    phase, since = job.status.phase, _since(job)
    lasting = f" for {text.age(since, now)}" if since is not None else ""
    attempt = f", attempt {job.status.attempt}" if job.status.attempt else ""
    decisive = find(job.status, _DECISIVE.get(phase, RUNNING))
    reason = decisive.reason if decisive is not None else ""
    match phase:
        case JobPhase.PENDING if job.spec.suspend:
            return f"is suspended{attempt}"
        case JobPhase.PENDING:
            return f"waits{lasting}{f': {reason}' if reason else ''}{attempt}"
        case JobPhase.RUNNING:
            return f"has run{lasting}{attempt}"
        case JobPhase.FAILED:
            return f"failed{f': {reason}' if reason else ''}{attempt}"
        case JobPhase.SUCCEEDED:
            return f"succeeded{attempt}"
        case _:
            return f"is {phase.value.lower()}{lasting}{attempt}"


def rows(job: GPUJob, place: Position | None, now: datetime, start: str = "") -> list[Row]:
    """Returns all facts once, the most important first. `start` is the expected start, if known."""
    status = job.status
    found = _reasons(job)
    failure, said = status.failure, [message for _, message in found]
    if failure is not None and not any(failure.message in message for message in said):
        found.append(("Failure", f"{failure.failure_class.value}: {failure.message}"))
    if status.phase is JobPhase.FAILED and status.attempt:
        found.append(("Log", log_command(job)))
    if status.stop is not None:
        left = text.duration((status.stop.deadline - now).total_seconds())
        found.append(
            ("Stopping", f"{status.stop.reason}: {status.stop.message} (grace: {left} left)")
        )
    if status.next_attempt_at is not None and status.next_attempt_at > now:
        left = text.duration((status.next_attempt_at - now).total_seconds())
        found.append(("Next attempt", f"in {left}"))
    if place is not None and _waits_in_order(job):
        order = f"{text.ordinal(place.place)} of {place.waiting} pending, by priority and age"
        found.append(("Queue", f"{job.spec.queue}: {order}"))
    found += [("Start", start)] * bool(start)
    if status.placement is not None and len(status.placement.workers) > 1:
        found += [("Worker", line) for line in text.placement(status.placement)]
    if place is not None and not status.conditions:
        found.append(("Operator", NOT_PROCESSED))
    elif status.observed_generation < job.metadata.generation:
        found.append(("Operator", "has not processed the latest change of this job yet"))
    if step := next_step(job):
        found.append(("Next", step))
    return found or [("Operator", NOT_PROCESSED)]


def _reasons(job: GPUJob) -> list[Row]:
    """Returns the message of the condition that decides the phase, then those of the others.

    A condition that only repeats the phase, or that only confirms that nothing is wrong, is left
    out, and each message is shown once.
    """
    phase = job.status.phase
    decisive = _DECISIVE.get(phase, RUNNING)
    found: dict[str, Row] = {}
    for condition in _by_interest(job):
        label = _label(condition, decisive, phase)
        message = condition.message or condition.reason
        if label and message not in found:
            found[message] = (label, message)
    return list(found.values())


def _label(condition: Condition, decisive: str, phase: JobPhase) -> str:
    """Returns the label of the condition's row, or "" if it has none."""
    value, kind = condition.status, condition.type
    if kind == decisive:
        return "Reason" if phase in (JobPhase.PENDING, JobPhase.FAILED) else phase.value
    if kind == SCHEDULED:
        return "Placed" if value is ConditionStatus.TRUE else ""
    if kind == RUNNING:
        return "" if value is ConditionStatus.TRUE or phase in _ENDED else "Last attempt"
    if kind in _REPEATING:
        return ""
    # An object that another version wrote may have further conditions.
    bad = ConditionStatus.FALSE if kind == ACCEPTED else ConditionStatus.TRUE
    return kind if value is bad else ""


def _waits_in_order(job: GPUJob) -> bool:
    """Returns whether the place by priority and age adds to the operator's own words.

    Those may have a position already, or a reason that no place in the order ends.
    """
    scheduled = next((one for one in job.status.conditions if one.type == SCHEDULED), None)
    if scheduled is None:
        return True
    return scheduled.reason not in NO_TURN and "; position " not in scheduled.message


def log_command(job: GPUJob) -> str:
    """Returns the command that shows the last attempt's logs. Its pods stay as long as the job."""
    name, namespace = job.metadata.name, job.metadata.namespace
    if job.spec.workers == 1:
        return f"kubectl logs -n {namespace} {name}-{job.status.attempt}-0 -c {WORKER_CONTAINER}"
    chosen = f"{LABEL_JOB_UID}={job.metadata.uid},{LABEL_ATTEMPT}={job.status.attempt}"
    return f"kubectl logs -n {namespace} -l {chosen} -c {WORKER_CONTAINER} --prefix --tail 20"


def as_json(job: GPUJob, place: Position | None, now: datetime | None = None) -> dict[str, Any]:
    """Returns the same for programs. Without `now`, the expected start is left out."""
    status = encode(job.status)
    kept = ("phase", "attempt", "conditions", "failure", "stop", "nextAttemptAt", "placement")
    queue: dict[str, Any] = {"name": job.spec.queue}
    if place is not None:
        queue |= {"position": place.place, "waiting": place.waiting}
    interval = shown_range(job, now) if now is not None else None
    return {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "queue": queue,
        "start": None if interval is None else encode(interval),
        "next": next_step(job),
        **{name: status[name] for name in kept if name in status},
    }


def _waits(job: GPUJob) -> bool:
    return (
        job.status.phase is JobPhase.PENDING
        and not job.spec.suspend
        and job.metadata.deletion_timestamp is None
    )


def _since(job: GPUJob) -> datetime | None:
    if job.status.phase is JobPhase.PENDING:
        return job.metadata.creation_timestamp
    return job.status.attempt_started_at


def _by_interest(job: GPUJob) -> list[Condition]:
    """Returns the conditions in order: first the one that decides the phase, then False before
    Unknown before True, and newest first.

    A condition that only reports an unfinished job comes last.
    """
    decisive = _DECISIVE.get(job.status.phase, RUNNING)
    order = {ConditionStatus.FALSE: 0, ConditionStatus.UNKNOWN: 1, ConditionStatus.TRUE: 2}

    def key(one: Condition) -> tuple[bool, bool, int, float, str]:
        unfinished = one.type == SUCCEEDED and one.status is ConditionStatus.UNKNOWN
        at = -one.last_transition_time.timestamp()
        return one.type != decisive, unfinished, order[one.status], at, one.type

    return sorted(job.status.conditions, key=key)
