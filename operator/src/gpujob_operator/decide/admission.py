"""The pass over waiting jobs: who gets cards this cycle, who makes room, what the others are told.

In the order of `line`. A job that does not fit first looks whether room comes by itself, then
whether it may make some (`room`), and once it has waited for long keeps cards from later ones
(`claims`), which only jobs that are gone in time may still use.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import format_memory
from gpujob_operator.decide import conditions
from gpujob_operator.decide.assignment import Assignment, assign
from gpujob_operator.decide.board import Board
from gpujob_operator.decide.claims import Claim, describe, soonest
from gpujob_operator.decide.conditions import ConditionWriter
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.explain import Refusal
from gpujob_operator.decide.grace import stop_seconds
from gpujob_operator.decide.interruption import (
    Interruptions,
    held_bytes,
    waits_for,
)
from gpujob_operator.decide.lifecycle import Step
from gpujob_operator.decide.line import Line
from gpujob_operator.decide.lines import InOrder, Pending
from gpujob_operator.decide.needs import Needs
from gpujob_operator.decide.plan import EventNote
from gpujob_operator.decide.queueing import Queues
from gpujob_operator.decide.releases import Releases
from gpujob_operator.decide.starts import Places, Starts
from gpujob_operator.decide.waiting import told_lately, waited_seconds

# How many jobs of the line keep cards for themselves.
CLAIMS_MAX = 8
# Looking for the soonest cards reads every card: for so many kinds of jobs a cycle.
PLACES_MAX = 2
# So many kinds are told again a cycle why they wait; the others in the next, this much later.
EXPLANATIONS_MAX = 16
LATER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Wait:
    reason: str
    # Found when it is asked for: most jobs were told already.
    tell: Callable[[], str]
    next_seconds: float | None = None
    # Among those that wait for room; 0: it waits for something else.
    position: int = 0
    # Where it could start first, if that was looked for.
    claim: Claim | None = None
    # What it would hold on a card, where only the quota is in the way.
    memory_bytes: int = 0
    # Whether it fits on cards, where only the quota is in the way.
    fits: bool = False


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why the jobs of a kind wait, as long as nothing else is placed, kept or interrupted."""

    reason: str
    state: tuple[int, ...]
    # Short jobs too, which may use cards that are kept for others.
    by_fillers: bool


@dataclass(slots=True)
class Admission:
    """One pass. `steps` are the waiting jobs' next steps; `interruptions.stops` says who makes
    room for them."""

    board: Board
    queues: Queues
    releases: Releases
    starts: Starts
    configuration: Configuration
    now: datetime
    # Jobs that hold cards, as they are after this cycle's step; asked for when it matters.
    running: Callable[[], Mapping[str, GPUJob]]
    lowest_priority: int
    room_is_made: bool
    needs_of: Callable[[str], Needs]
    steps: dict[str, Step] = field(default_factory=dict[str, Step])
    interruptions: Interruptions = field(init=False)
    _claims: int = 0
    _refused: dict[int, "_Refused"] = field(default_factory=dict[int, "_Refused"])
    _explained: set[Hashable] = field(default_factory=set[Hashable])
    _held: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _places: dict[Hashable, tuple[Places, ...]] = field(
        default_factory=dict[Hashable, tuple[Places, ...]]
    )
    _position: int = 0

    def __post_init__(self) -> None:
        self.interruptions = Interruptions(
            board=self.board,
            queues=self.queues,
            configuration=self.configuration,
            now=self.now,
            find_running=self.running,
            lowest_priority=self.lowest_priority,
            under_way=self.room_is_made,
            needs_of=self._needs_of,
        )

    def admit(self, lines: InOrder) -> None:
        """Gives every waiting job its step, in order. All workers of a job or none (I11)."""
        line = Line(lines, self.queues, self.board.capacity.size, self._memory_bytes)
        state = self._state()
        for entry in line:
            if self._is_settled(entry, state):
                self._position += 1
            else:
                self.steps[entry.job.metadata.uid] = self._step(entry)
                state = self._state()

    def _is_settled(self, entry: Pending, state: tuple[int, ...]) -> bool:
        """Whether the job could only be told again what it was told lately: an earlier one of its
        kind was refused as it is now, and nothing was done for it. Thousands of waiting jobs cost
        next to nothing."""
        told, refused = entry.told, self._refused.get(entry.kind)
        if told is None or refused is None or self.now >= told.until:
            return False
        if refused.reason != told.reason or refused.state != state:
            return False
        if self.now >= told.patience_at and not self._patience_is_idle(entry.job, refused.reason):
            return False
        return refused.by_fillers or not self.board.may_fill(
            self.releases.length_seconds(entry.job)
        )

    def _patience_is_idle(self, job: GPUJob, reason: str) -> bool:
        """Whether nothing more can be kept for a job, however long it has waited."""
        if reason == "OverQuota":
            return job.spec.queue in self.queues.kept
        return self._claims >= CLAIMS_MAX

    def _state(self) -> tuple[int, ...]:
        """What a refusal rests on. Cards only become fewer in a pass."""
        quota = self.queues.version if self.queues.by_name else 0
        return quota, len(self.queues.kept), len(self.board.claimed), len(self.interruptions.stops)

    def _remember_refusal(self, entry: Pending, needs: Needs, wait: _Wait) -> None:
        """Keeps that the kind was refused, if nothing can be done for others of it either."""
        if not entry.kind or wait.reason not in ("NoRoom", "OverQuota"):
            return
        quota = wait.reason == "OverQuota"
        spent = self.interruptions.exhausted if quota else self._claims >= CLAIMS_MAX
        under_way = self.interruptions.under_way
        if not spent and (under_way or self.interruptions.possible(needs)):
            return
        if quota and self.interruptions.leaving(self.queues.root(needs.job.spec.queue)):
            return
        by_fillers = not self.board.claimed or self.board.refuses_fillers(needs.alike)
        self._refused[entry.kind] = _Refused(wait.reason, self._state(), by_fillers)

    def _step(self, entry: Pending) -> Step:
        wait = _not_eligible(entry, self.queues, self.now)
        if wait is not None:
            return self._wait(entry.job, wait)
        needs = self._needs_of(entry.job)
        found = self._place(needs)
        if isinstance(found, Assignment):
            found.take_on(self.board)
            step = _placed(entry.job, found, self.now)
            self.queues.add(entry.job, step.status)
            return step
        self._position += 1
        wait = self._without_room(needs, found)
        self._remember_refusal(entry, needs, wait)
        return self._wait(entry.job, wait)

    def _place(self, needs: Needs) -> Assignment | _Wait:
        length = self.releases.length_seconds(needs.job) if self.board.claimed else inf
        found = assign(needs, self.board, self.configuration, length)
        if isinstance(found, Refusal) and not found.possible:
            return _Wait("Impossible", lambda: found.message)
        if self.queues.by_name:
            fits = isinstance(found, Assignment)
            held = found.reservation.memory_bytes if fits else self._held_bytes(needs)
            over = self.queues.over(needs.job, held)
            if over:
                return _Wait("OverQuota", lambda: over, memory_bytes=held, fits=fits)
        return found if isinstance(found, Assignment) else _Wait("NoRoom", lambda: found.message)

    # -- a job that does not fit now

    def _without_room(self, needs: Needs, wait: _Wait) -> _Wait:
        """What is done for it, and what it is told."""
        claim = None
        making = ""
        if wait.reason == "OverQuota":
            making = self._room_in_quota(needs, wait)
        elif wait.reason == "NoRoom":
            claim = self._soonest(needs)
            making = self._room_on_cards(needs, claim) if claim is not None else ""
        told = replace(wait, reason="MakingRoom", tell=lambda: making) if making else wait
        return replace(told, position=self._position, claim=claim)

    def _room_in_quota(self, needs: Needs, wait: _Wait) -> str:
        """Interrupts jobs whose share of the quota this one may have; says so."""
        leaving = self.interruptions.leaving(self.queues.root(needs.job.spec.queue))
        with self.queues.without(leaving):
            if not self.queues.over(needs.job, wait.memory_bytes):
                return waits_for(leaving)
            room = self.interruptions.in_quota(needs, wait.memory_bytes, fits=wait.fits)
        if room is not None and room.victims:
            self.board.claim(room.claim, self._stop_seconds(v.job for v in room.victims))
            return self.interruptions.interrupt(needs, room.victims)
        if self._patience_over(needs.job):
            self.queues.keep(needs.job, wait.memory_bytes)
        return ""

    def _room_on_cards(self, needs: Needs, claim: Claim) -> str:
        """Interrupts jobs where this one may, or keeps cards for it; says for whom it waits."""
        jobs = [self.releases.jobs[uid] for uid in claim.making_room]
        if jobs and claim.start_seconds <= self._stop_seconds(jobs):
            self._keep(claim)
            return waits_for(jobs)
        if claim.start_seconds > self.configuration.preemption_wait_seconds:
            room = self.interruptions.find_room(needs, claim)
            if room is not None:
                self.board.claim(room.claim, self._stop_seconds(v.job for v in room.victims))
                return self.interruptions.interrupt(needs, room.victims)
        if self._patience_over(needs.job):
            self._keep(claim)
        return ""

    def _stop_seconds(self, jobs: Iterable[GPUJob]) -> float:
        """Until the last of these jobs is stopped."""
        return max((stop_seconds(job, self.configuration) for job in jobs), default=0.0)

    def _soonest(self, needs: Needs) -> Claim | None:
        """The earliest start, looked for when something may follow from it."""
        acts = (
            self._patience_over(needs.job)
            or self.interruptions.possible(needs)
            or self.interruptions.under_way
        )
        if not acts or self._claims >= CLAIMS_MAX:
            return None
        self._claims += 1
        return self._claim(needs)

    def _claim(self, needs: Needs) -> Claim | None:
        """Kinds of jobs are looked at once a cycle, and not more than some of them."""
        if needs.alike not in self._places:
            if len(self._places) >= PLACES_MAX:
                return None
            self._places[needs.alike] = self.starts.places(
                needs, self.board.capacity, self.releases, self.configuration
            )
        places = self._places[needs.alike]
        return soonest(needs, places, self.releases, self.board.claimed)

    def _keep(self, claim: Claim) -> None:
        self.board.claim(claim.uuids, claim.start_seconds)

    # -- what is known of a job

    def _needs_of(self, job: GPUJob) -> Needs:
        return self.needs_of(job.metadata.uid)

    def _memory_bytes(self, entry: Pending) -> int:
        return self._held_bytes(self._needs_of(entry.job)) if self.queues.by_name else 0

    def _held_bytes(self, needs: Needs) -> int:
        if needs.alike not in self._held:
            self._held[needs.alike] = held_bytes(needs, self.board, self.configuration)
        return self._held[needs.alike]

    def _patience_over(self, job: GPUJob) -> bool:
        return waited_seconds(job, self.now) >= self.configuration.claim_after_seconds

    def _wait(self, job: GPUJob, wait: _Wait) -> Step:
        before = conditions.find(job.status, conditions.SCHEDULED)
        news = before is None or before.reason != wait.reason
        if not news and told_lately(job, self.configuration, self.now):
            # Thousands of waiting jobs of which nothing new can be said cost next to nothing.
            return Step(job.status, next_seconds=wait.next_seconds)
        if not news and not self._may_explain(job):
            return Step(job.status, next_seconds=LATER_SECONDS)
        message = wait.tell()
        if wait.position:
            message += f"; position {wait.position} of those waiting for room"
        message += self._estimate(job, wait)
        status = changed(job.status, phase=JobPhase.PENDING)
        status = ConditionWriter(job, self.now).set(
            status, conditions.SCHEDULED, False, wait.reason, message
        )
        events = (EventNote(wait.reason, message),) if news else ()
        return Step(status, events=events, next_seconds=wait.next_seconds)

    def _may_explain(self, job: GPUJob) -> bool:
        """Whether the job's kind is one of those that are told again in this cycle."""
        alike = self._needs_of(job).alike
        if alike not in self._explained and len(self._explained) < EXPLANATIONS_MAX:
            self._explained.add(alike)
        return alike in self._explained

    def _estimate(self, job: GPUJob, wait: _Wait) -> str:
        """When it could start, for a job that waits for cards."""
        if wait.reason != "NoRoom":
            return ""
        claim = wait.claim or self._claim(self._needs_of(job))
        text = describe(claim) if claim is not None else ""
        return f"; {text}" if text else ""


def _not_eligible(entry: Pending, queues: Queues, now: datetime) -> _Wait | None:
    job = entry.job
    if job.spec.suspend:
        return _Wait("Suspended", lambda: "spec.suspend is true")
    missing = queues.missing(job)
    if missing:
        return _Wait("QueueNotFound", lambda: missing)
    live = [pod.name for pod in entry.pods if not pod.finished]
    if live:
        return _Wait("OldAttemptEnding", lambda: f"waits for {', '.join(live[:3])} to end")
    at = job.status.next_attempt_at
    if at is not None and at > now:
        left = (at - now).total_seconds()
        before = conditions.find(job.status, conditions.SCHEDULED)
        message = before.message if before is not None else f"tried again in {left:.0f} s"
        return _Wait("WaitingForRetry", lambda: message, next_seconds=left)
    return None


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
    status = changed(
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
