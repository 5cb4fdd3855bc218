"""`plan(snapshot, now)`: the whole decision of one cycle, a pure function.

Total and deterministic: the same snapshot and time always give the same plan, whatever the order
of the snapshot's tuples; applying a plan and planning again gives an empty plan.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_operator.decide import lifecycle, trouble
from gpujob_operator.decide.admission import Admission
from gpujob_operator.decide.board import Board
from gpujob_operator.decide.capacity import Capacity, holds_cards
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.grace import pod_grace_seconds
from gpujob_operator.decide.known import Around, Inputs, Known, ProfileKey, around
from gpujob_operator.decide.lifecycle import Step
from gpujob_operator.decide.memory import Memory
from gpujob_operator.decide.neighbours import change_nothing
from gpujob_operator.decide.plan import (
    DeletePod,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.profiles import new_entries, with_entries
from gpujob_operator.decide.queueing import Queues, QueueUse
from gpujob_operator.decide.seen import Seen
from gpujob_operator.decide.slowdown import find_move, has_cards_alone, observed_pace
from gpujob_operator.decide.snapshot import Snapshot
from gpujob_operator.decide.writing import Picture, finish_status, worth_writing

# After every deadline.
FAR = datetime(9000, 1, 1, tzinfo=UTC)


def plan(snapshot: Snapshot, now: datetime, memory: Memory | None = None) -> Plan:
    """Decides what to write. `now` is timezone-aware; nothing else tells the time.

    `memory` of earlier cycles makes it fast and changes nothing in the plan.
    """
    memory = memory if memory is not None else Memory()
    memory.take_in(snapshot, now)
    cycle = _Cycle(snapshot, now, memory)
    steps = cycle.steps()
    queues = memory.queues(snapshot)
    if memory.waiting.entries or memory.slowed:
        _admit(steps, queues, cycle)
    items: list[PlanItem] = [
        RejectJob(job)
        for job in sorted(snapshot.invalid_jobs, key=lambda job: job.metadata.uid)
        if job.observed_generation != job.metadata.generation
    ]
    for uid in sorted(uid for uid, step in steps.items() if cycle.matters(uid, step)):
        written = _items(memory.known[uid], steps[uid], cycle)
        cycle.remember(uid, steps[uid], written)
        items += written
    items += _orphans(snapshot, memory)
    items += _queue_items(snapshot, queues.use, memory)
    return Plan(tuple(items), cycle.next_seconds(steps))


class Planner:
    """`plan` with a memory of its own, which a cycle that fails does not spoil."""

    def __init__(self) -> None:
        self._memory = Memory()

    def __call__(self, snapshot: Snapshot, now: datetime) -> Plan:
        memory, self._memory = self._memory, Memory()
        decided = plan(snapshot, now, memory)
        self._memory = memory
        return decided


def _admit(steps: dict[str, Step], queues: Queues, cycle: "_Cycle") -> None:
    """Gives the waiting jobs and those that make room for them their steps."""
    memory = cycle.memory
    admission = Admission(
        board=Board.of(memory.capacity, memory.mix, memory.board),
        queues=queues,
        releases=memory.releases,
        starts=memory.starts,
        configuration=cycle.configuration,
        now=cycle.now,
        running=lambda: cycle.running(steps),
        lowest_priority=memory.lowest_priority,
        room_is_made=memory.room_is_made,
        needs_of=memory.needs,
    )
    admission.admit(memory.waiting.in_order(cycle.configuration, cycle.now))
    for uid, step in admission.steps.items():
        own = steps.get(uid)
        steps[uid] = replace(step, deletes=own.deletes) if own and own.deletes else step
    for uid, stop in admission.interruptions.stops.items():
        step = cycle.step(uid, steps)
        steps[uid] = lifecycle.stopped_for(memory.known[uid].job, step, stop, cycle.now)
    if memory.slowed and not admission.interruptions.stops:
        _separate(steps, admission.board, cycle)


def _separate(steps: dict[str, Step], board: Board, cycle: "_Cycle") -> None:
    """Moves a job away from a neighbour that it slows too much, or that slows it."""
    memory, running = cycle.memory, cycle.running(steps)
    slowed = [running[uid] for uid in sorted(memory.slowed) if uid in running]
    move = find_move(slowed, running, board, memory.needs, cycle.configuration, cycle.now)
    if move is None:
        return
    uid = move.job.metadata.uid
    before = cycle.step(uid, steps)
    step = lifecycle.stopped_for(memory.known[uid].job, before, move.stop, cycle.now)
    floor = max(step.status.utilization_floor_percent, move.utilization_floor_percent)
    status = changed(step.status, utilization_floor_percent=floor)
    steps[uid] = replace(step, status=status)


@dataclass(slots=True)
class _Cycle:
    """One cycle: what is known, and what the steps of this one were decided from."""

    snapshot: Snapshot
    now: datetime
    memory: Memory
    # Jobs whose figures moved and are to be written later.
    held_back: set[str] = field(default_factory=set[str])
    # Profiles that are saved in this cycle: one job of a workload speaks at a time.
    saved: set[ProfileKey] = field(default_factory=set[ProfileKey])
    # Jobs that would have had something to say, too.
    unheard: set[str] = field(default_factory=set[str])
    _inputs: dict[str, Inputs] = field(default_factory=dict[str, Inputs])

    @property
    def configuration(self) -> Configuration:
        return self.snapshot.configuration

    @property
    def capacity(self) -> Capacity:
        return self.memory.capacity

    def steps(self) -> dict[str, Step]:
        """The next step in their own life of jobs of which anything changed, by UID."""
        memory = self.memory
        found: dict[str, Step] = {}
        for uid in sorted(memory.awake):
            known = memory.known[uid]
            job = known.job
            if not known.held and not known.pods:
                if job.status.phase is JobPhase.PENDING:
                    # Admission looks at it, if anybody.
                    memory.awake.discard(uid)
                found[uid] = Step(job.status)
                continue
            step = self._next_step(uid, known)
            if step is None:
                memory.awake.discard(uid)
            else:
                found[uid] = step
        return found

    def step(self, uid: str, steps: Mapping[str, Step]) -> Step:
        """The job's step: this cycle's, or the last one that still holds."""
        known = self.memory.known[uid]
        return steps.get(uid) or known.step or Step(known.job.status)

    def _next_step(self, uid: str, known: Known) -> Step | None:
        """The step of a job that has pods or holds cards; None while the last one holds."""
        memory, job, before = self.memory, known.job, known.inputs
        report, used = memory.reports.get(uid), memory.usage.get((uid, job.status.attempt))
        nearby = around(job, self.capacity)
        rests = known.quiet_until is not None and self.now < known.quiet_until
        rests = rests and before is not None and before.report is report and before.usage == used
        if rests and before is not None and self._still_rests(known, before, nearby):
            return None
        inputs = self._inputs[uid] = Inputs(report, used, nearby)
        return self._advance(known, inputs)

    def _still_rests(self, known: Known, before: Inputs, nearby: Around) -> bool:
        """Whether the last step holds also with these nodes and cards around."""
        if before.around == nearby:
            return True
        marks_before, marks = ([one for one, _ in there] for there in (before.around, nearby))
        if known.step is None or marks_before != marks:
            return False
        cards = [card for _, here in nearby for card in here]
        status = known.step.status
        if not change_nothing(known.job, status, known.profile, cards, self.capacity):
            return False
        known.inputs = replace(before, around=nearby)
        return True

    def _advance(self, known: Known, inputs: Inputs) -> Step:
        job = known.job
        seen = Seen(
            pods=known.pods,
            in_the_way=known.crew.in_the_way,
            report=inputs.report,
            usage=inputs.usage,
            profile=known.profile,
            trouble=trouble.find(job, self.capacity, self.configuration, self.now),
            lost_nodes=self.memory.lost_nodes(job),
            listening_since=self.snapshot.listening_since,
        )
        return lifecycle.advance(job, seen, self.configuration, self.now)

    def matters(self, uid: str, step: Step) -> bool:
        """Whether anything could have to be written for the job."""
        job = self.memory.known[uid].job
        waits = job.status.phase is JobPhase.PENDING and step.status is job.status
        return not waits or bool(step.deletes)

    def remember(self, uid: str, step: Step, written: list[PlanItem]) -> None:
        """Lets a job rest whose step led to nothing, as long as nothing else can follow."""
        memory, known, inputs = self.memory, self.memory.known[uid], self._inputs.get(uid)
        heard = not written and uid not in self.unheard
        if heard and inputs is not None and self._is_steady(known):
            after = step.next_seconds
            next_at = None if after is None else self.now + timedelta(seconds=after)
            memory.rest(uid, step, inputs, self._until(known.job, next_at), next_at)
            return
        memory.wake(uid)
        job = known.job
        leaves = job.metadata.deletion_timestamp is not None
        ended = job.finished and not known.held and not known.pods
        if not written and (leaves or ended):
            memory.awake.discard(uid)

    def _until(self, job: GPUJob, next_at: datetime | None) -> datetime:
        """The first moment at which a job that rests has something to do or to say."""
        # Deadlines closer than a second are told as one second.
        until = FAR if next_at is None else next_at - timedelta(seconds=1)
        told = job.status.observed_at
        if told is None or job.metadata.uid not in self.held_back:
            return until
        return min(until, told + timedelta(seconds=self.configuration.progress_write_seconds))

    def _is_steady(self, known: Known) -> bool:
        """Whether time alone brings nothing new before the next deadline: a job that runs on
        nodes that are well, or has finished."""
        job = known.job
        placement = job.status.placement
        if job.finished or placement is None:
            return job.finished
        if job.status.phase is not JobPhase.RUNNING:
            return False
        for worker in placement.workers:
            node = self.capacity.nodes.get(worker.node)
            if node is None or node.closed or node.node.not_ready_since is not None:
                return False
        return trouble.pressure(job.status, self.capacity) is None

    def running(self, steps: Mapping[str, Step]) -> dict[str, GPUJob]:
        """Jobs that hold cards, as they are after their step."""
        found: dict[str, GPUJob] = {}
        for uid in self.memory.holding:
            job = self.memory.known[uid].job
            if job.metadata.deletion_timestamp is not None:
                continue
            status = self.step(uid, steps).status
            job = job if status is job.status else replace(job, status=status)
            if holds_cards(job):
                found[uid] = job
        return found

    def next_seconds(self, steps: Mapping[str, Step]) -> float | None:
        """When the first deadline of any job is."""
        found = [step.next_seconds for step in steps.values() if step.next_seconds is not None]
        first = self.memory.next_at.first
        if first is not None:
            found.append((first - self.now).total_seconds())
        return min(found, default=None)


def _items(known: Known, step: Step, cycle: _Cycle) -> list[PlanItem]:
    """The job's writes in order: its status, then its pods, then what was learned."""
    job = known.job
    if job.metadata.deletion_timestamp is not None:
        return list(step.deletes)
    if step.status is job.status and job.status.phase is JobPhase.PENDING:
        return list(step.deletes)
    if job.finished and job.status.observed_generation == job.metadata.generation:
        # Nothing about it can change any more: thousands of finished jobs cost next to nothing.
        return list(step.deletes)
    items: list[PlanItem] = []
    picture = Picture(cycle.capacity, cycle.configuration, cycle.now)
    status = finish_status(job, step.status, known.profile, picture)
    if worth_writing(job, status, picture):
        items.append(WriteStatus(job, changed(status, observed_at=cycle.now), step.events))
    elif status is not job.status and status != job.status:
        cycle.held_back.add(job.metadata.uid)
    items += step.deletes
    items += step.creates
    after = job if status is job.status else replace(job, status=status)
    cards = cycle.capacity.cards_of(status)
    alone = has_cards_alone(status, cards)
    pace = None if alone else observed_pace(status, known.profile, cards)
    entries = new_entries(after, known.profile, cycle.now, alone=alone, pace=pace)
    if entries is None:
        return items
    if known.profile_key in cycle.saved:
        cycle.unheard.add(job.metadata.uid)
        return items
    cycle.saved.add(known.profile_key)
    items.append(SaveProfile(with_entries(job, known.profile, entries)))
    return items


def _orphans(snapshot: Snapshot, memory: Memory) -> list[PlanItem]:
    """Pods that still name a job that is gone for their owner, should the garbage collector not
    have seen them (I7). Who deletes a job and keeps its pods takes the reference away."""
    invalid = {job.metadata.uid for job in snapshot.invalid_jobs}
    grace = snapshot.configuration.termination_grace_seconds
    orphans = [
        pod
        for pod in memory.pods_of_gone()
        if pod.deletion_at is None and pod.job_uid not in invalid
    ]
    orphans.sort(key=lambda pod: pod.uid)
    return [DeletePod(pod, pod_grace_seconds(pod, grace), "its GPUJob is gone") for pod in orphans]


def _queue_items(snapshot: Snapshot, use: Mapping[str, QueueUse], memory: Memory) -> list[PlanItem]:
    """Written when counts of jobs or cards changed; reserved memory alone follows with them."""
    items: list[PlanItem] = []
    waiting = memory.waiting.entries.values() if snapshot.queues else ()
    counts = Counter(entry.job.spec.queue for entry in waiting)
    for queue in sorted(snapshot.queues, key=lambda q: q.metadata.name):
        name = queue.metadata.name
        held = use.get(name, QueueUse())
        pending = counts.get(name, 0)
        status = GPUQueueStatus(
            observed_generation=queue.metadata.generation,
            pending_jobs=pending,
            running_jobs=held.jobs,
            reserved_gpus=held.gpus,
            reserved_memory_bytes=held.memory_bytes,
            conditions=queue.status.conditions,
        )
        if status != queue.status:
            items.append(WriteQueueStatus(queue, status))
    return items
