"""The pass over waiting jobs: who gets cards this cycle, and what the others are told."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.quantities import format_memory
from gpujob_operator.decide import conditions
from gpujob_operator.decide.assignment import Assignment, Refusal, assign
from gpujob_operator.decide.board import Board
from gpujob_operator.decide.capacity import Capacity
from gpujob_operator.decide.conditions import ConditionWriter
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.lifecycle import Step
from gpujob_operator.decide.needs import Needs, needs_of
from gpujob_operator.decide.order import OrderRules, order
from gpujob_operator.decide.plan import EventNote
from gpujob_operator.decide.queueing import Queues, claim, contender
from gpujob_operator.decide.snapshot import PodView


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without cards. Its pods, if any, are remains of an earlier attempt."""

    job: GPUJob
    profile: GPUProfile | None
    pods: tuple[PodView, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wait:
    reason: str
    message: str
    next_seconds: float | None = None
    # What it would hold on a card, where only the quota is in the way.
    memory_bytes: int = 0


def in_order(
    waiting: list[Pending],
    queues: Queues,
    capacity: Capacity,
    configuration: Configuration,
    now: datetime,
) -> list[Pending]:
    """Who is served first comes first; see `order`."""
    size = capacity.size
    rules = OrderRules(
        policy=configuration.order_policy,
        waiting_seconds_max=configuration.waiting_seconds_max,
        stretch_max=configuration.waiting_stretch_max,
    )
    by_uid = {entry.job.metadata.uid: entry for entry in waiting}
    contenders = [contender(entry.job, queues, size, now) for entry in waiting]
    return [by_uid[uid] for uid in order(contenders, now.timestamp(), rules)]


def admit(
    waiting: list[Pending],
    board: Board,
    queues: Queues,
    configuration: Configuration,
    now: datetime,
) -> Iterator[tuple[str, Step]]:
    """Yields the next step of every waiting job, in order (I11). All workers or none."""
    position = 0
    for entry in waiting:
        wait = _not_eligible(entry, queues, now)
        if wait is not None:
            yield entry.job.metadata.uid, _wait(entry.job, wait, configuration, now)
            continue
        position += 1
        needs = needs_of(entry.job, entry.profile)
        found = _place(needs, board, queues, configuration)
        if isinstance(found, Assignment):
            found.take_on(board)
            step = _placed(entry.job, found, now)
            queues.add(entry.job, step.status)
            position -= 1
            yield entry.job.metadata.uid, step
            continue
        if _patience_over(entry.job, configuration, now):
            _keep_free(found, needs, board, queues, configuration)
        message = f"{found.message}; position {position} of those waiting for room"
        told = replace(found, message=message)
        yield entry.job.metadata.uid, _wait(entry.job, told, configuration, now)


def _place(
    needs: Needs, board: Board, queues: Queues, configuration: Configuration
) -> Assignment | _Wait:
    found = assign(needs, board, configuration)
    if isinstance(found, Refusal):
        return _Wait("NoRoom" if found.possible else "Impossible", found.message)
    memory_bytes = found.reservation.memory_bytes
    over = queues.over(needs.job, memory_bytes)
    return _Wait("OverQuota", over, memory_bytes=memory_bytes) if over else found


def _keep_free(
    found: _Wait, needs: Needs, board: Board, queues: Queues, configuration: Configuration
) -> None:
    """What a job that has waited for long keeps from later ones: cards, or its queue's quota."""
    if found.reason == "OverQuota":
        queues.keep(needs.job, found.memory_bytes)
    if found.reason == "NoRoom":
        board.claim(claim(needs, board.capacity, configuration))


def _not_eligible(entry: Pending, queues: Queues, now: datetime) -> _Wait | None:
    job = entry.job
    if job.spec.suspend:
        return _Wait("Suspended", "spec.suspend is true")
    missing = queues.missing(job)
    if missing:
        return _Wait("QueueNotFound", missing)
    live = [pod.name for pod in entry.pods if not pod.finished]
    if live:
        return _Wait("OldAttemptEnding", f"waits for {', '.join(live[:3])} to end")
    at = job.status.next_attempt_at
    if at is not None and at > now:
        left = (at - now).total_seconds()
        before = conditions.find(job.status, conditions.SCHEDULED)
        message = before.message if before is not None else f"tried again in {left:.0f} s"
        return _Wait("WaitingForRetry", message, next_seconds=left)
    return None


def _patience_over(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    since = job.status.next_attempt_at or job.metadata.creation_timestamp or now
    return (now - since).total_seconds() >= configuration.claim_after_seconds


def _wait(job: GPUJob, wait: _Wait, configuration: Configuration, now: datetime) -> Step:
    before = conditions.find(job.status, conditions.SCHEDULED)
    news = before is None or before.reason != wait.reason
    if not news and _told_lately(job, configuration, now):
        # Thousands of waiting jobs of which nothing new can be said cost next to nothing.
        return Step(job.status, next_seconds=wait.next_seconds)
    status = replace(job.status, phase=JobPhase.PENDING)
    status = ConditionWriter(job, now).set(
        status, conditions.SCHEDULED, False, wait.reason, wait.message
    )
    events = (EventNote(wait.reason, wait.message),) if news else ()
    return Step(status, events=events, next_seconds=wait.next_seconds)


def _told_lately(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    told = job.status.observed_at
    if told is None or job.status.observed_generation != job.metadata.generation:
        return False
    return (now - told).total_seconds() < configuration.pending_write_seconds


def _placed(job: GPUJob, found: Assignment, now: datetime) -> Step:
    """The decision, made durable before any pod exists."""
    placement, reservation = found.placement, found.reservation
    where = ", ".join(sorted({worker.node for worker in placement.workers}))
    cards = ", ".join(uuid for worker in placement.workers for uuid in worker.gpus[:4])
    held = format_memory(reservation.memory_bytes)
    text = (
        f"attempt {job.status.attempt + 1} on {where} ({cards}), holds {held} a card "
        f"({reservation.source.value}{', spot' if placement.spot else ''})"
    )
    status = replace(
        job.status,
        phase=JobPhase.STARTING,
        attempt=job.status.attempt + 1,
        placement=placement,
        reservation=reservation,
        next_attempt_at=None,
        attempt_started_at=now,
        progressed_at=None,
        stop=None,
        failure=None,
    )
    writer = ConditionWriter(job, now)
    status = writer.set(status, conditions.SCHEDULED, True, "Placed", text)
    # The same finding as while its pods are created: one write, not two.
    status = writer.set(status, conditions.RUNNING, False, "Starting", "its pods are to be created")
    return Step(status, events=(EventNote("Placed", text),), next_seconds=0.0)
