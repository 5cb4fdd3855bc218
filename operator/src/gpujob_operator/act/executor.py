"""Writes plans in the background: in order for one job, in parallel for different jobs.

* In: plans (`submit`) and snapshots (`assume`).
* Does: writes the items of each job in a lane. It decides nothing, and no decision waits for it.
* Out: requests through `ItemRunner`, and snapshots that include statuses in flight.
* Called by: `loop`, in every cycle.

The items that a plan has for one job form a *lane*. They are written one after the other, except
that the pods of a gang are written in parallel. While a lane is in flight, its decision is
*assumed* in the next snapshots. Items of later plans for the same job are held back, and the job is
decided about again after the lane has ended. There is one exception: a status that still waits for
its slot is replaced by a newer one.

A write that no longer fits (a conflict, or an object that is gone) is dropped together with the
later items of the plan for the same job. The next cycle sees the new state and decides again. A
crash between any two writes therefore leaves no state that a later cycle cannot handle.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_operator.act.item_runner import ItemRunner, Sending, needs_service
from gpujob_operator.act.targets import in_place_of, is_outdated_by, namespace_of, only_tells
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.decide.model.assumption import assumed_status
from gpujob_operator.decide.model.lanes import Lanes, LanesLeft
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

LANES_MAX = 3000
# The part of the lanes that one namespace may use, even if all of its writes hang.
NAMESPACE_LANES_FRACTION = 2 / 3
# Informative statuses that found no lane are decided again once this part of the lanes is free.
# Otherwise hundreds of them would be decided again in each cycle.
TELLS_BATCH_FRACTION = 1 / 16


@dataclass(frozen=True, slots=True)
class Submission:
    """How many of a plan's items were started, and why others were not.

    `overtaking` statuses replaced older ones, which are not sent. `held_back` items belong to a
    lane in flight. `postponed` items found no free lane. `backing_off` items were refused recently.
    `retry_seconds` is when the first of these may be tried.
    """

    started: int = 0
    overtaking: int = 0
    held_back: int = 0
    postponed: int = 0
    backing_off: int = 0
    retry_seconds: float | None = None


@dataclass(slots=True)
class _Assumed:
    """A job's status while it is being written. `seen` and `job` cache the last result of
    `overlay`.
    """

    item: WriteStatus
    status: GPUJobStatus
    seen: GPUJob | None = None
    job: GPUJob | None = None

    def overlay(self, current: GPUJob) -> GPUJob:
        """Returns the job with the assumed status.

        Returns the job unchanged if another writer has changed the status meanwhile.
        """
        if current is not self.seen:
            self.seen = current
            same = current.status == self.item.job.status
            self.job = replace(current, status=self.status) if same else current
        return self.job or current


@dataclass(slots=True)
class _Lane:
    items: list[PlanItem]
    namespace: str = ""
    # The item being written, if the items are written one after the other.
    sending: Sending | None = None
    task: asyncio.Task[None] | None = None
    assumed: _Assumed | None = None

    def hurry(self) -> None:
        """Speeds up the lane, because items of a later plan wait for its end."""
        if self.sending is not None:
            self.sending.hurry()

    def withdraw(self) -> bool:
        """Ends the lane without its only item. Returns False if that is no longer possible."""
        return len(self.items) == 1 and self.sending is not None and self.sending.withdraw()


class Executor:
    def __init__(
        self,
        runner: ItemRunner,
        metrics: Metrics,
        *,
        settled: Callable[[], None] = lambda: None,
        lanes_max: int = LANES_MAX,
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        # Called when a lane has ended, because held-back or failed items must be decided again.
        self._settled = settled
        self._lanes_max = lanes_max
        self._lanes: dict[str, _Lane] = {}
        self._lanes_of: Counter[str] = Counter()
        # Lanes of the last plan in which nothing was tried, after a refusal.
        self._backing_off: list[str] = []
        # Informative items that found no lane, since lanes were last free for them. In the order of
        # plans.
        self._waiting_to_tell: dict[str, None] = {}

    @property
    def lanes(self) -> int:
        """The number of lanes in flight."""
        return len(self._lanes)

    def submit(self, plan: Plan) -> Submission:
        """Starts to write the plan's items and returns immediately.

        Call it in the event loop, before reading anything that is not in the plan's snapshot.
        """
        lanes: dict[str, list[PlanItem]] = {}
        for item in plan.items:
            lanes.setdefault(_lane(item), []).append(self._runner.pinned(item))
        started = overtaking = held_back = postponed = backing_off = 0
        self._backing_off = []
        waits: list[float] = []
        for key, items in lanes.items():
            if key in self._lanes:
                overtakes = self._overtakes(self._lanes[key], items)
                overtaking += overtakes
                if not overtakes:
                    held_back += len(items)
                    self._make_way(self._lanes[key], items)
                continue
            ready = self._ready(items, waits)
            backing_off += len(items) - len(ready)
            if not ready:
                self._backing_off.append(key)
            if not self._has_lane_for(ready):
                postponed += len(ready)
                if all(map(only_tells, ready)):
                    self._waiting_to_tell[key] = None
            elif ready:
                started += len(ready)
                self._start(key, ready)
        retry_seconds = min(waits, default=None)
        return Submission(started, overtaking, held_back, postponed, backing_off, retry_seconds)

    def _has_lane_for(self, items: Sequence[PlanItem]) -> bool:
        """Returns whether the items may take a lane.

        Informative items leave half of the lanes to all others. The items of one namespace leave a
        third of the lanes to other namespaces.
        """
        if not items:
            return True
        if self._lanes_left(namespace_of(items[0])) <= 0:
            return False
        if all(map(only_tells, items)):
            return self._tells_left() > 0
        return len(self._lanes) < self._lanes_max

    def _tells_left(self) -> int:
        return max(self._lanes_max // 2 - len(self._lanes), 0)

    def _lanes_left(self, namespace: str) -> int:
        return ceil(self._lanes_max * NAMESPACE_LANES_FRACTION) - self._lanes_of[namespace]

    def assume(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the statuses that are being written, their jobs, and refused
        pods.

        Capacity that a write will free still counts as reserved (`assumed_status`).
        """
        return self._runner.tell(self._with_assumed(snapshot))

    def _with_assumed(self, snapshot: Snapshot) -> Snapshot:
        if self._backing_off:
            snapshot = replace(snapshot, backing_off=tuple(self._backing_off))
        if not self._lanes or self._tells_left() >= self._lanes_max * TELLS_BATCH_FRACTION:
            self._waiting_to_tell.clear()
        if not self._lanes:
            return snapshot
        left = tuple(LanesLeft(one, self._lanes_left(one)) for one in sorted(self._lanes_of))
        writing = (*self._lanes, *(one for one in self._waiting_to_tell if one not in self._lanes))
        lanes = Lanes(left, self._tells_left())
        snapshot = replace(snapshot, writing=writing, lanes=lanes)
        assumed = {
            lane.assumed.item.job.metadata.uid: lane.assumed
            for lane in self._lanes.values()
            if lane.assumed is not None
        }
        if not assumed:
            return snapshot
        jobs = tuple(
            assumed[job.metadata.uid].overlay(job) if job.metadata.uid in assumed else job
            for job in snapshot.jobs
        )
        return replace(snapshot, jobs=jobs)

    def take_results(self) -> Counter[WriteResult]:
        """Returns and resets the results of the writes that ended since the last call."""
        results, self._runner.results = self._runner.results, Counter()
        return results

    async def ended(self) -> None:
        """Returns when no lane is in flight.

        Call it when nothing may be sent any more. Each lane then ends soon, because leadership is
        checked before each request.
        """
        while tasks := [lane.task for lane in self._lanes.values() if lane.task is not None]:
            await asyncio.wait(tasks)

    async def drain(self, seconds: float) -> bool:
        """Waits for the lanes in flight, then cancels the rest. Returns False if there was a rest.

        Requests of cancelled lanes may still arrive. Call it when nothing more is submitted.
        """
        self._runner.stop_deferring()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if not tasks:
            return True
        _, left = await asyncio.wait(tasks, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            log.warning("writes abandoned", lanes=len(left), seconds=seconds)
            await asyncio.wait(left)
        return not left

    def _ready(self, items: Sequence[PlanItem], waits: list[float]) -> list[PlanItem]:
        """Returns the items that may be tried now.

        Items after a blocked one wait with it. Pods of a gang do not wait for one another.
        """
        ready: list[PlanItem] = []
        for item in items:
            seconds = self._runner.seconds_left(item)
            if seconds <= 0:
                ready.append(item)
                continue
            waits.append(seconds)
            if not isinstance(item, CreatePod) or needs_service(item):
                break
        return ready

    def _overtakes(self, lane: _Lane, items: Sequence[PlanItem]) -> bool:
        """Replaces the lane's only item by a newer status while it waits for its slot.

        Returns False if the items have to wait for the lane's end.
        """
        sending, assumed = lane.sending, lane.assumed
        if sending is None or sending.sent or assumed is None:
            return False
        if len(lane.items) > 1 or len(items) > 1:
            return False
        item = in_place_of(assumed.item, assumed.status, items[0])
        if item is None:
            return False
        sending.take_the_place(item)
        lane.items, lane.assumed = [item], _assumed(item)
        self._metrics.overtaken_writes.inc()
        return True

    def _make_way(self, lane: _Lane, items: Sequence[PlanItem]) -> None:
        """Ends the lane soon, so that the items of a later plan can be decided again."""
        if is_outdated_by(lane.items[0], items) and lane.withdraw():
            self._metrics.overtaken_writes.inc()
        else:
            lane.hurry()

    def _start(self, key: str, items: list[PlanItem]) -> None:
        first = items[0]
        lane = self._lanes[key] = _Lane(items, namespace_of(first))
        self._lanes_of[lane.namespace] += 1
        if isinstance(first, WriteStatus):
            lane.assumed = _assumed(first)
            if first.pod is not None:
                self._runner.placing(first)
        lane.task = asyncio.create_task(self._run_lane(key, lane))
        self._metrics.write_lanes.set(len(self._lanes))

    async def _run_lane(self, key: str, lane: _Lane) -> None:
        try:
            for creates, group in groupby(lane.items, lambda item: isinstance(item, CreatePod)):
                items = list(group)
                done = await (self._run_creates(items) if creates else self._run_all(lane, items))
                if not done:
                    return
        finally:
            del self._lanes[key]
            self._lanes_of[lane.namespace] -= 1
            if not self._lanes_of[lane.namespace]:
                del self._lanes_of[lane.namespace]
            self._metrics.write_lanes.set(len(self._lanes))
            self._settled()

    async def _run_all(self, lane: _Lane, items: Sequence[PlanItem]) -> bool:
        for item in items:
            lane.sending = Sending(item)
            if isinstance(item, WriteStatus) and item.pod is not None:
                result = await self._runner.place(lane.sending, item, item.pod)
            else:
                result = await self._runner.run(lane.sending)
            if lane.assumed is not None and lane.assumed.item is lane.sending.item:
                lane.assumed = None
            if result is not WriteResult.DONE:
                return False
        return True

    async def _run_creates(self, items: Sequence[PlanItem]) -> bool:
        """Creates the pods of a gang in parallel, after the Service that gives them their names."""
        first = items[0]
        if isinstance(first, CreatePod) and needs_service(first):
            result = await self._runner.run_service(first)
            if result is not WriteResult.DONE:
                return False
        results = await asyncio.gather(*(self._runner.run(Sending(item)) for item in items))
        return set(results) <= {WriteResult.DONE}


def _assumed(item: WriteStatus) -> _Assumed | None:
    """Returns what counts while the item is being written. None: the previous status."""
    status = assumed_status(item.job.status, item.status)
    return None if status is None else _Assumed(item, status)


def _lane(item: PlanItem) -> str:
    """Returns the lane of an item: one per job, queue or profile."""
    match item:
        case WriteStatus() | RejectJob() | CreatePod() | DeleteJob():
            return item.job.metadata.uid
        case DeletePod():
            return item.pod.job_uid
        case SaveProfile() | DeleteProfile():
            return f"profile {item.profile.metadata.key}"
        case WriteQueueStatus():
            return f"queue {item.queue.metadata.name}"
        case TryTemplate():
            # The job's status is written meanwhile.
            return f"trial {item.job.metadata.uid}"
