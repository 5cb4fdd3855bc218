"""A model of one operator process around the real cache, the real plan and the real rendering.

What is modelled: watch streams that lag, repeat, skip and break; lists; the Lease; writes that take
time, fail, or succeed without an answer; a process that is paused, crashes and starts again. What
is real: `observe.Cache`, `decide.plan`, `render`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpujob_api.gpujob import StopReason
from gpujob_api.report import Report
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.plan import (
    CreatePod,
    DeletePod,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.snapshot import ReceivedReport, Snapshot
from gpujob_operator.metrics import Metrics
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.render.profile import profile_manifest, profile_status_patch
from gpujob_operator.render.status import queue_patch, rejection_patch, status_patch
from tests.simulation.api_server import (
    AlreadyExists,
    ApiFault,
    ApiServer,
    Conflict,
    Manifest,
    NotFound,
    Unavailable,
)
from tests.simulation.clock import Clock
from tests.simulation.faults import Faults
from tests.simulation.worker import Worker

PlanFunction = Callable[[Snapshot, Any], Plan]
LEASE_SECONDS = 15.0
TRIES_MAX = 4
RENEW_SECONDS = 5.0
HOLD_SECONDS = 10.0
RESYNC_SECONDS = 30.0
METRICS = Metrics()
# Jobs first, pods last: see `handlers.relist`.
LISTED = (Kind.JOB, Kind.GPU_NODE, Kind.QUEUE, Kind.PROFILE, Kind.NODE, Kind.POD)


class NotLeader(ApiFault):
    """The lease was lost between the decision and the write."""


@dataclass(slots=True)
class Lease:
    holder: str = ""
    version: int = 0


class _Bell(Dirty):
    """Wakes the model's cycle instead of an event loop."""

    def __init__(self, ring: Callable[[bool], None]) -> None:
        super().__init__()
        self._ring = ring

    def mark(self, *, urgent: bool = True) -> None:
        self._ring(urgent)


class OperatorShell:
    """One process. `crash` ends it; a new one is another object with another name."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        api: ApiServer,
        lease: Lease,
        faults: Faults,
        plan: PlanFunction,
        configuration: Configuration,
    ) -> None:
        self.name = name
        self._clock = clock
        self._api = api
        self._lease = lease
        self._faults = faults
        self._plan = plan
        self._configuration = configuration
        self.alive = True
        self.paused_until = 0.0
        self.cycles = 0
        self._held_until = float("-inf")
        self._seen_lease = (-1, 0.0)
        self._fresh = False
        self._busy = False
        self._wanted_at: float | None = None
        self._listening_since = clock.moment
        self._reports: dict[tuple[str, int], ReceivedReport] = {}
        self._delivered: dict[Kind, float] = dict.fromkeys(Kind, 0.0)
        self._broken_until: dict[Kind, float] = dict.fromkeys(Kind, 0.0)
        self._cache = Cache(_Bell(self._ring), METRICS, lambda: clock.moment)
        for kind in LISTED:
            self._relist(kind)
        api.watchers.append(self._watch)
        self._try_lease()

    # -- being alive

    @property
    def leads(self) -> bool:
        return self.alive and self._clock.now < self._held_until

    def crash(self) -> None:
        self.alive = False
        if self._watch in self._api.watchers:
            self._api.watchers.remove(self._watch)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, SIGCONT: everything that was to happen happens afterwards."""
        self.paused_until = self._clock.now + seconds

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def run() -> None:
            if not self.alive:
                return
            left = self.paused_until - self._clock.now
            if left > 0:
                self._clock.after(left, run)
            else:
                action()

        self._clock.after(seconds, run)

    # -- the Lease

    def _try_lease(self) -> None:
        started, held = self._clock.now, self.leads
        if self._lease.version != self._seen_lease[0]:
            self._seen_lease = (self._lease.version, started)
        expired = started - self._seen_lease[1] >= LEASE_SECONDS
        if self._faults.split_brain or self._lease.holder in ("", self.name) or expired:
            self._lease.holder = self.name
            self._lease.version += 1
            self._seen_lease = (self._lease.version, started)
            self._held_until = started + HOLD_SECONDS
            if not held:
                self._listening_since = self._clock.moment
                self._refresh_all()
        else:
            self._held_until = float("-inf")
        self._later(RENEW_SECONDS, self._try_lease)

    def _refresh_all(self) -> None:
        """Everything is listed anew: somebody wrote what our streams have not told yet."""
        self._fresh = False
        delay = 0.0
        for kind in LISTED:
            delay += self._clock.random.uniform(0.0, 0.1)
            self._later(delay, lambda kind=kind: self._relist(kind))
        self._later(delay + 0.01, self._become_fresh)

    def _become_fresh(self) -> None:
        self._fresh = True
        self._ring(True)

    # -- watches

    def _watch(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        now = self._clock.now
        if self._broken_until[kind] > now:
            return
        if self._faults.breaks_watch(self._clock.random):
            self._break(kind)
            return
        at = max(self._delivered[kind], now + self._faults.watch_delay(self._clock.random))
        self._delivered[kind] = at
        self._later(at - now, lambda: self._deliver(kind, event_type, manifest))
        if self._faults.repeats_event(self._clock.random):
            late = at - now + self._clock.random.uniform(0, 5)
            self._later(late, lambda: self._deliver(kind, event_type, manifest))

    def _deliver(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        self._cache.apply(kind, event_type, manifest)

    def _break(self, kind: Kind) -> None:
        """Events are lost until a full list finds what they said."""
        seconds = self._clock.random.uniform(0.2, self._faults.watch_break_seconds)
        self._broken_until[kind] = self._clock.now + seconds
        self._later(seconds, lambda: self._relist(kind))

    def _relist(self, kind: Kind) -> None:
        """Our own kinds come from a consistent read, taken at one moment."""
        self._cache.resync(kind, self._api.list(kind), str(self._api.version))

    # -- reports

    def receive(self, worker: Worker, report: Report) -> StopReason | None:
        """A worker's report; the answer says whether it has to stop."""
        pod = self._cache.pod(worker.pod_uid)
        job = self._cache.job(worker.job_uid)
        if not self.leads or self.paused_until > self._clock.now or pod is None or job is None:
            return None
        key = (pod.job_uid, pod.rank)
        before = self._reports.get(key)
        order = (report.attempt, report.sequence)
        if before is None or (before.report.attempt, before.report.sequence) <= order:
            report = Report.from_text(report.to_text())
            self._reports[key] = ReceivedReport(*key, self._clock.moment, report)
            self._ring(before is None or before.report.checkpoint != report.checkpoint)
        return job.status.stop if pod.attempt == job.status.attempt else None

    # -- the loop

    def _ring(self, urgent: bool) -> None:
        self._wake(0.05 if urgent else 2.0)

    def _wake(self, seconds: float) -> None:
        at = self._clock.now + seconds
        if not self.alive or (self._wanted_at is not None and self._wanted_at <= at):
            return
        self._wanted_at = at
        self._later(seconds, lambda: self._cycle(at))

    def _cycle(self, at: float) -> None:
        if self._busy or self._wanted_at != at:
            return
        self._wanted_at = None
        if not (self.leads and self._fresh):
            self._wake(RESYNC_SECONDS)
            return
        self.cycles += 1
        known = self._cache.job
        self._reports = {k: one for k, one in self._reports.items() if known(k[0]) is not None}
        snapshot = self._cache.snapshot(tuple(self._reports.values()), self._configuration)
        snapshot = replace(snapshot, listening_since=self._listening_since)
        plan = self._plan(snapshot, self._clock.moment)
        lanes: dict[str, list[PlanItem]] = {}
        for item in plan.items:
            lanes.setdefault(_lane(item), []).append(item)
        self._busy = True
        self._write_next(list(lanes.values()), plan.next_seconds, complete=True)

    def _write_next(
        self, lanes: list[list[PlanItem]], next_seconds: float | None, *, complete: bool
    ) -> None:
        """One write after the other, in order within a lane, lanes in any order."""
        if not lanes:
            self._busy = False
            wait = RESYNC_SECONDS if next_seconds is None else next_seconds
            self._wanted_at = None
            self._wake(min(RESYNC_SECONDS, max(0.1, wait)) if complete else 1.0)
            return
        if not (self.leads and self._fresh):
            self._write_next([], next_seconds, complete=False)
            return
        lane = self._clock.random.choice(lanes)
        item = lane.pop(0)

        def written(done: bool) -> None:
            left = [one for one in lanes if one and (done or one is not lane)]
            if self.alive:
                self._write_next(left, next_seconds, complete=complete and done)

        delay = self._faults.write_delay(self._clock.random)
        self._later(delay, lambda: self._try(item, 1, written))

    def _try(self, item: PlanItem, attempt: int, done: Callable[[bool], None]) -> None:
        """Repeats a write without an answer. If there is none at all, nothing more is decided
        before everything has been listed anew: it may have been written.
        """
        try:
            if not (self.leads and self._fresh):
                raise NotLeader("the lease is lost")
            self._write(item)
        except Unavailable:
            if attempt < TRIES_MAX:
                self._later(0.1 * 2**attempt, lambda: self._try(item, attempt + 1, done))
                return
            self._refresh_all()
            done(False)
        except ApiFault:
            done(False)
        else:
            done(True)

    def _write(self, item: PlanItem) -> None:
        try:
            self._faults.before_write(self._clock.random)
            self._write_item(item)
        finally:
            self._faults.writes += 1
            if self._faults.counts_down_to_crash():
                self.crash()

    def _write_item(self, item: PlanItem) -> None:
        match item:
            case WriteStatus():
                metadata = item.job.metadata
                self._status(Kind.JOB, metadata.namespace, metadata, status_patch(item))
            case RejectJob():
                metadata = item.job.metadata
                body = rejection_patch(item, self._clock.moment)
                self._status(Kind.JOB, metadata.namespace, metadata, body)
            case WriteQueueStatus():
                self._status(Kind.QUEUE, "", item.queue.metadata, queue_patch(item))
            case CreatePod():
                self._create_pod(item)
            case DeletePod():
                self._delete_pod(item)
            case SaveProfile():
                self._save_profile(item)

    def _status(self, kind: Kind, namespace: str, metadata: Any, body: Manifest) -> None:
        try:
            answer = self._api.patch(kind, namespace, metadata.name, body, self.name)
        except Conflict:
            self._refresh(kind, namespace, metadata.name, metadata.uid)
            raise
        except NotFound:
            self._cache.forget(kind, metadata.uid)
            raise
        self._answered(kind, answer)

    def _answered(self, kind: Kind, answer: Manifest) -> None:
        """The answer of a write may be lost, although the write was committed."""
        if self._faults.loses_answer(self._clock.random):
            raise Unavailable("no answer")
        self._cache.apply(kind, None, answer)

    def _refresh(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        try:
            current = self._api.get(kind, namespace, name)
        except NotFound:
            self._cache.forget(kind, uid)
            return
        if current["metadata"]["uid"] != uid:
            self._cache.forget(kind, uid)
        self._cache.apply(kind, None, current)

    def _create_pod(self, item: CreatePod) -> None:
        manifest = worker_pod(item, self._configuration)
        namespace = item.job.metadata.namespace
        try:
            answer = self._api.create(Kind.POD, manifest, self.name)
        except AlreadyExists:
            answer = self._api.get(Kind.POD, namespace, manifest["metadata"]["name"])
            same = answer["metadata"]["labels"] == manifest["metadata"]["labels"]
            if not same or "deletionTimestamp" in answer["metadata"]:
                raise
        self._answered(Kind.POD, answer)

    def _delete_pod(self, item: DeletePod) -> None:
        pod = item.pod
        try:
            answer = self._api.delete(
                Kind.POD, pod.namespace, pod.name, self.name, uid=pod.uid, grace=item.grace_seconds
            )
        except (NotFound, Conflict):
            self._cache.forget(Kind.POD, pod.uid)
            return
        if self._api.find(Kind.POD, pod.uid) is not None:
            self._answered(Kind.POD, answer)

    def _save_profile(self, item: SaveProfile) -> None:
        metadata = item.profile.metadata
        version = metadata.resource_version
        if not version:
            manifest = profile_manifest(item)
            bare = {name: value for name, value in manifest.items() if name != "status"}
            try:
                created = self._api.create(Kind.PROFILE, bare, self.name)
            except AlreadyExists:
                created = self._api.get(Kind.PROFILE, metadata.namespace, metadata.name)
            version = created["metadata"]["resourceVersion"]
        body = profile_status_patch(item, version)
        self._status(Kind.PROFILE, metadata.namespace, metadata, body)


def _lane(item: PlanItem) -> str:
    match item:
        case WriteStatus() | RejectJob() | CreatePod():
            return item.job.metadata.uid
        case DeletePod():
            return item.pod.job_uid
        case SaveProfile():
            return f"profile {item.profile.metadata.name}"
        case WriteQueueStatus():
            return f"queue {item.queue.metadata.name}"
