"""A simulated cluster: it applies plans and advances time."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from gpujob_api.gpujob import GPUJob, JobPhase, WorkerPlacement
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.report import Report, WorkerPhase
from gpujob_api.settings import EXIT_DONE
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    Plan,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import (
    NodeView,
    PodPhase,
    PodView,
    ReceivedReport,
    Snapshot,
)
from gpujob_operator.decide.model.snapshot_edits import without_processes
from gpujob_operator.decide.model.workers import joined, worker_name
from gpujob_operator.decide.simulation.progress_model import (
    AttemptProgress,
    final_report,
    in_seconds,
    pace_from_start,
    pace_now,
    report_of,
)

# Seconds from the creation of a pod until it runs.
START_SECONDS = 1.0
# A worker reports this often within the time after which it would count as hung. More reports would
# change no estimate, because estimates extrapolate from the last report.
REPORTS_PER_HANG_TIMEOUT = 4
# Readings that are fresh at the start stay fresh, because their time is moved this far ahead.
FRESH = timedelta(days=3650)


class Lengths(Protocol):
    """How long attempts run, if the planner's own estimate is not to decide it."""

    def seconds(self, job: GPUJob, now: datetime) -> float | None:
        """Returns how long the running attempt of the job still runs. None: it does not end."""
        ...


@dataclass(slots=True)
class SimulatedCluster:
    """State that changes with plans and with time. Objects are replaced, never modified."""

    now: datetime
    # What time and plans do not change.
    base: Snapshot
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    pods: dict[str, PodView] = field(default_factory=dict[str, PodView])
    nodes: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    gpu_nodes: dict[str, GPUNode] = field(default_factory=dict[str, GPUNode])
    queues: dict[str, GPUQueue] = field(default_factory=dict[str, GPUQueue])
    profiles: dict[tuple[str, str], GPUProfile] = field(
        default_factory=dict[tuple[str, str], GPUProfile]
    )
    paces: dict[str, AttemptProgress] = field(default_factory=dict[str, AttemptProgress])
    reports: dict[str, ReceivedReport] = field(default_factory=dict[str, ReceivedReport])
    # When created pods start to run, and when stopped pods are gone.
    starts: dict[str, datetime] = field(default_factory=dict[str, datetime])
    ends: dict[str, datetime] = field(default_factory=dict[str, datetime])
    # None: attempts run as long as the planner expects.
    lengths: Lengths | None = None
    # Jobs that are still to be created, the latest first.
    arrivals: list[GPUJob] = field(default_factory=list[GPUJob])

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        now: datetime,
        lengths: Lengths | None = None,
        arrivals: Iterable[GPUJob] = (),
    ) -> "SimulatedCluster":
        """Returns the cluster of the snapshot.

        Unreadable jobs, deleted jobs (whose pods are stopping) and unmanaged pods take no part.
        """
        cluster = cls(
            now=now,
            base=snapshot,
            jobs={
                job.metadata.uid: job
                for job in snapshot.jobs
                if job.metadata.deletion_timestamp is None
            },
            pods={pod.uid: pod for pod in joined(snapshot.jobs, snapshot.pods)},
            nodes={node.name: node for node in snapshot.nodes},
            gpu_nodes={
                node.metadata.name: _kept_fresh(node, snapshot.configuration, now)
                for node in snapshot.gpu_nodes
            },
            queues={queue.metadata.name: queue for queue in snapshot.queues},
            profiles={(p.metadata.namespace, p.metadata.name): p for p in snapshot.profiles},
            lengths=lengths,
            arrivals=sorted(arrivals, key=_creation, reverse=True),
        )
        cluster._begin()
        return cluster

    @property
    def configuration(self) -> Configuration:
        return self.base.configuration

    def snapshot(self) -> Snapshot:
        self._renew_reports()
        return replace(
            self.base,
            invalid_jobs=(),
            jobs=tuple(self.jobs.values()),
            pods=tuple(self.pods.values()),
            nodes=tuple(self.nodes.values()),
            gpu_nodes=tuple(self.gpu_nodes.values()),
            queues=tuple(self.queues.values()),
            profiles=tuple(self.profiles.values()),
            reports=tuple(self.reports.values()),
            # Reports are always received, and nothing is measured.
            listening_since=None,
            usage={},
        )

    def _begin(self) -> None:
        releases = ReleaseTimes.of(self.jobs.values(), self.now, self.configuration)
        for uid, job in self.jobs.items():
            if job.status.phase is JobPhase.RUNNING:
                self._set_pace(uid, pace_now(job, releases, self.now), job)
        for uid, pod in self.pods.items():
            if pod.finished:
                continue
            if pod.deletion_at is not None:
                self.ends[uid] = max(pod.deletion_at, self.now)
            elif pod.phase is PodPhase.PENDING:
                self.starts[uid] = self.now

    def _set_pace(self, uid: str, pace: AttemptProgress, job: GPUJob) -> None:
        if self.lengths is not None:
            pace = replace(pace, ends_at=in_seconds(self.now, self.lengths.seconds(job, self.now)))
        self.paces[uid] = pace

    # -- what a plan does

    def carry_out(self, plan: Plan) -> None:
        for item in plan.items:
            match item:
                case WriteStatus():
                    self._write(replace(item.job, status=item.status))
                case CreatePod():
                    self._create(item.job, item.rank)
                case DeletePod():
                    self._delete(item.pod, item.grace_seconds)
                case SaveProfile():
                    metadata = item.profile.metadata
                    self.profiles[metadata.namespace, metadata.name] = item.profile
                case WriteQueueStatus():
                    name = item.queue.metadata.name
                    self.queues[name] = replace(item.queue, status=item.status)
                case RejectJob() | DeleteJob() | DeleteProfile() | TryTemplate():
                    # Finished jobs stay, because the simulation reports on them.
                    pass

    def _write(self, job: GPUJob) -> None:
        uid = job.metadata.uid
        before = self.jobs[uid]
        self.jobs[uid] = job
        if job.status.phase is JobPhase.RUNNING and before.status.phase is not JobPhase.RUNNING:
            # Expected times need every job, and given lengths none.
            known = self.jobs.values() if self.lengths is None else ()
            releases = ReleaseTimes.of(known, self.now, self.configuration)
            self._set_pace(uid, pace_from_start(job, releases, self.configuration, self.now), job)
        elif job.status.placement is None or job.finished:
            self.paces.pop(uid, None)
            self.reports.pop(uid, None)

    def _create(self, job: GPUJob, rank: int) -> None:
        place = next(one for one in _workers(job) if one.rank == rank)
        uid = f"{job.metadata.uid}-{job.status.attempt}-{rank}"
        self.pods[uid] = PodView(
            name=worker_name(job.metadata.name, job.status.attempt, rank),
            namespace=job.metadata.namespace,
            uid=uid,
            job_uid=job.metadata.uid,
            attempt=job.status.attempt,
            rank=rank,
            phase=PodPhase.PENDING,
            gpus=place.gpus,
            created_at=self.now,
        )
        self.starts[uid] = self.now + timedelta(seconds=START_SECONDS)

    def _delete(self, pod: PodView, grace_seconds: int) -> None:
        if pod.uid not in self.pods:
            return
        if pod.finished:
            del self.pods[pod.uid]
            return
        gone_at = self.now + timedelta(seconds=grace_seconds)
        self.pods[pod.uid] = replace(self.pods[pod.uid], deletion_at=gone_at)
        self.ends[pod.uid] = gone_at
        self.starts.pop(pod.uid, None)

    # -- what time does

    def next_event(self) -> datetime | None:
        """Returns the time of the next event without a plan, which is never before now."""
        own = (pace.ends_at for pace in self.paces.values() if pace.ends_at is not None)
        new = (_creation(job) for job in self.arrivals[-1:])
        first = min((*self.starts.values(), *self.ends.values(), *own, *new), default=None)
        return None if first is None else max(first, self.now)

    def pass_until(self, moment: datetime) -> None:
        """Applies every event that is due by then."""
        self.now = moment
        while self.arrivals and _creation(self.arrivals[-1]) <= moment:
            job = self.arrivals.pop()
            self.jobs[job.metadata.uid] = job
        for uid in _due(self.starts, moment):
            self._start(uid)
        for uid in _due(self.ends, moment):
            self._end(uid)
        for uid, pace in list(self.paces.items()):
            if pace.ends_at is not None and pace.ends_at <= moment:
                self._complete(uid)

    def _start(self, uid: str) -> None:
        pod = self.pods[uid]
        if pod.node is None:
            pod = replace(pod, node=self._node_of(pod))
            self._use_host(pod, 1)
        self.pods[uid] = replace(pod, phase=PodPhase.RUNNING, started_at=self.now, reason="")

    def _node_of(self, pod: PodView) -> str | None:
        job = self.jobs.get(pod.job_uid)
        workers = _workers(job) if job is not None else ()
        return next((one.node for one in workers if one.rank == pod.rank), None)

    def _end(self, uid: str) -> None:
        """Ends a stopped worker at the end of its grace. Its pod stays until it is read."""
        pod = self.pods[uid]
        job = self.jobs.get(pod.job_uid)
        code, words = None, None
        if job is not None:
            pace = self.paces.get(pod.job_uid)
            code, words = final_report(job, pace, self.configuration, self.now)
        self._finish(replace(pod, exit_code=code, termination=words, phase=PodPhase.FAILED))

    def _complete(self, job_uid: str) -> None:
        """Completes the job after its last step, if all its workers still exist."""
        pace = self.paces.pop(job_uid)
        job = self.jobs[job_uid]
        if job.status.phase is not JobPhase.RUNNING:
            return
        words = None
        if self.lengths is not None:
            # A run that is shorter than its announced steps would count as broken off.
            words = Report(pace.attempt, WorkerPhase.FINISHED, step=pace.step)
        for pod in list(self.pods.values()):
            current = pod.job_uid == job_uid and pod.attempt == job.status.attempt
            if current and not pod.finished:
                done = replace(pod, exit_code=EXIT_DONE, phase=PodPhase.SUCCEEDED)
                self._finish(done if words is None else replace(done, termination=words))

    def _finish(self, pod: PodView) -> None:
        self.ends.pop(pod.uid, None)
        self.starts.pop(pod.uid, None)
        self.pods[pod.uid] = replace(pod, finished_at=self.now)
        self._use_host(pod, -1)
        node = self.gpu_nodes.get(pod.node or "")
        if node is not None:
            self.gpu_nodes[node.metadata.name] = without_processes(node, {pod.uid})

    def _use_host(self, pod: PodView, sign: int) -> None:
        view, job = self.nodes.get(pod.node or ""), self.jobs.get(pod.job_uid)
        if view is None or job is None:
            return
        cpu_milli, memory_bytes = host_requests(job)
        self.nodes[view.name] = replace(
            view,
            cpu_milli_free=view.cpu_milli_free - sign * cpu_milli,
            memory_bytes_free=view.memory_bytes_free - sign * memory_bytes,
            pods_free=view.pods_free - sign,
        )

    def _renew_reports(self) -> None:
        """Renews the reports of running jobs, which would otherwise count as hung."""
        for uid, pace in self.paces.items():
            job, known = self.jobs[uid], self.reports.get(uid)
            if known is None or self._is_old(job, known):
                self.reports[uid] = report_of(job, pace, self.now)

    def _is_old(self, job: GPUJob, known: ReceivedReport) -> bool:
        if known.report.attempt != job.status.attempt:
            return True
        kept_seconds = job.spec.retry.hang_timeout_seconds / REPORTS_PER_HANG_TIMEOUT
        return (self.now - known.received_at).total_seconds() >= kept_seconds


def _workers(job: GPUJob) -> tuple[WorkerPlacement, ...]:
    placement = job.status.placement
    return placement.workers if placement is not None else ()


def _creation(job: GPUJob) -> datetime:
    created = job.metadata.creation_timestamp
    assert created is not None, "an arrival has a time"
    return created


def _due(moments: dict[str, datetime], moment: datetime) -> list[str]:
    """Removes and returns the events that are due, earliest first."""
    due = sorted((at, uid) for uid, at in moments.items() if at <= moment)
    for _, uid in due:
        del moments[uid]
    return [uid for _, uid in due]


def _kept_fresh(node: GPUNode, configuration: Configuration, now: datetime) -> GPUNode:
    """Keeps fresh readings fresh. Stale readings stay stale."""
    at = node.status.observed_at
    if at is None or (now - at).total_seconds() > configuration.telemetry_stale_seconds:
        return node
    return replace(node, status=replace(node.status, observed_at=now + FRESH))
