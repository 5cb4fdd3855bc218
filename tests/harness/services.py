"""A service with its jobs in virtual time: jobs start, answer, are interrupted, fail and drain.

Its gate, if it has one, holds requests while no replica is ready.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gate import GateReport
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobFailure, JobPhase, StopReason
from gpujob_api.gpuservice import GPUService, GPUServiceSpec, GPUServiceStatus
from gpujob_api.manifest import GPUSERVICE, gpujob_from_manifest
from gpujob_api.meta import API_VERSION, Metadata, OwnerReference
from gpujob_api.report import FailureClass
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import Gate, GateChanges, GatePod, gate_name
from gpujob_operator.decide.model.service_plan import (
    CreateJob,
    Role,
    ServiceInputs,
    ServiceJob,
    ServiceStep,
)
from gpujob_operator.decide.model.services import replica_name
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.services.gates import sends_to_gate
from gpujob_operator.decide.services.plan import step_of
from gpujob_operator.render.gpuservice import service_job
from tests.harness.builders import T0, make_template, placed

UID = "uid-answers"


def make_service(name: str = "answers", **spec: Any) -> GPUService:
    template = spec.pop("template", None) or make_template(command=("serve",))
    return GPUService(
        Metadata(name, "team", UID, "1", generation=1, creation_timestamp=T0),
        GPUServiceSpec(template, **spec),
    )


def read_job(create: CreateJob, uid: str, now: datetime) -> GPUJob:
    """The job as the API server would have it."""
    manifest = service_job(create)
    manifest["metadata"] |= {"uid": uid, "resourceVersion": "1"}
    job = gpujob_from_manifest(manifest)
    return replace(job, metadata=replace(job.metadata, creation_timestamp=now))


def as_replica(job: GPUJob, service: GPUService | None = None) -> GPUJob:
    """The job as the first replica of a revision of the service."""
    owner = (service or make_service()).metadata
    metadata = replace(
        job.metadata,
        name=replica_name(owner.name, "0a1b2c", 0),
        owner_references=(
            OwnerReference(API_VERSION, GPUSERVICE.kind, owner.name, owner.uid, controller=True),
        ),
    )
    return replace(job, metadata=metadata)


@dataclass(slots=True)
class Live:
    """One job with what becomes of it, in seconds since it was created."""

    job: GPUJob
    role: Role
    ready_at: datetime | None
    gone_at: datetime | None = None
    again_at: datetime | None = None
    report: ServingReport | None = None
    ready: bool = False


@dataclass(slots=True)
class LiveGate:
    """One gate. It does not report while `is_silent`."""

    pod: GatePod
    started_at: datetime
    ready_at: datetime
    gone_at: datetime | None = None
    is_silent: bool = False
    reported: GateReport | None = None
    reported_at: datetime | None = None


@dataclass(slots=True)
class ServiceWorld:
    """Rounds of one second. `start_seconds` returns None for a job that finds no GPU."""

    service: GPUService = field(default_factory=make_service)
    start_seconds: Callable[[str], float | None] = lambda name: 3.0
    drain_seconds: float = 2.0
    nodes: tuple[str, ...] = ("n0", "n1", "n2", "n3")
    now: datetime = T0
    jobs: dict[str, Live] = field(default_factory=dict[str, Live])
    steps: list[ServiceStep] = field(default_factory=list[ServiceStep])
    # How many replicas answered in each round.
    answering: list[int] = field(default_factory=list[int])
    created: list[str] = field(default_factory=list[str])
    report: Callable[[Live], ServingReport | None] = lambda live: ServingReport(ready=True)
    problem: str = ""
    configuration: Configuration = field(default_factory=Configuration)
    gates: dict[str, LiveGate] = field(default_factory=dict[str, LiveGate])
    gate_revision: str = "aaaaaa"
    selects_gate: bool | None = None
    # When each held request arrived.
    held: list[datetime] = field(default_factory=list[datetime])
    answered: int = 0
    expired: int = 0
    last_request_at: datetime = T0

    def request(self, count: int = 1) -> None:
        """Requests arrive at the gate, and are held until a replica is ready."""
        self.held += [self.now] * count
        self.last_request_at = self.now

    def edit(self, **spec: Any) -> None:
        metadata = self.service.metadata
        self.service = replace(
            self.service,
            spec=replace(self.service.spec, **spec),
            metadata=replace(metadata, generation=metadata.generation + 1),
        )

    @property
    def status(self) -> GPUServiceStatus:
        return self.service.status

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(one for one in self.status.conditions if one.type == kind)
        return found.status.value, found.reason, found.message

    def replicas(self) -> list[Live]:
        return [one for one in self.jobs.values() if one.role is Role.REPLICA]

    def ready(self) -> list[Live]:
        return [one for one in self.replicas() if one.ready]

    def revisions(self) -> set[str]:
        return {one.job.metadata.name.rsplit("-", 2)[1] for one in self.replicas()}

    def run(self, seconds: int) -> "ServiceWorld":
        for _ in range(seconds):
            self.tick()
        return self

    def tick(self) -> ServiceStep:
        self.now += timedelta(seconds=1)
        self._age()
        self._age_gates()
        self._answer()
        self.selects_gate = sends_to_gate(self.inputs())
        step = step_of(self.inputs(), self.now)
        self.steps.append(step)
        for create in step.creates:
            assert create.name not in self.jobs, "a name that is in use"
            self._create(create)
        for remove in step.removes:
            self._remove(remove.job.metadata.name)
        self._change_gates(step.gates)
        if step.status is not None:
            self.service = replace(self.service, status=step.status)
        self.answering.append(len(self.ready()))
        return step

    def inputs(self) -> ServiceInputs:
        jobs = tuple(
            ServiceJob(
                live.job,
                self._pod(live),
                live.report or (self.report(live) if live.ready else None),
            )
            for live in self.jobs.values()
        )
        return ServiceInputs(
            self.service,
            jobs,
            self.problem,
            gates=tuple(self._gate(one) for one in self.gates.values()),
            gate_revision=self.gate_revision,
            selects_gate=self.selects_gate,
            configuration=self.configuration,
        )

    def interrupt(self, name: str, grace_seconds: float = 5.0, back_seconds: float = 30.0) -> None:
        """Its node is reclaimed: the process drains, and the job waits for another place."""
        live = self.jobs[name]
        deadline = self.now + timedelta(seconds=grace_seconds)
        stop = StopReason("NodeReclaimed", "node spot-1 goes away", deadline)
        live.job = replace(live.job, status=replace(live.job.status, stop=stop))
        live.ready, live.ready_at = False, None
        live.again_at = deadline + timedelta(seconds=back_seconds)

    def fail(self, name: str, message: str = "ModuleNotFoundError: no module torch") -> None:
        live = self.jobs[name]
        failure = JobFailure(FailureClass.USER_ERROR, message)
        status = replace(
            live.job.status,
            phase=JobPhase.FAILED,
            failure=failure,
            stop=None,
            finished_at=self.now,
        )
        live.job, live.ready, live.ready_at = replace(live.job, status=status), False, None
        live.again_at = None

    def finish(self, name: str, report: ServingReport | None = None) -> None:
        live = self.jobs[name]
        status = replace(live.job.status, phase=JobPhase.SUCCEEDED, finished_at=self.now)
        live.job, live.ready, live.ready_at = replace(live.job, status=status), False, None
        live.report = report

    def _create(self, create: CreateJob) -> None:
        seconds = self.start_seconds(create.name)
        self.created.append(create.name)
        job = read_job(create, f"uid-{len(self.created)}", self.now)
        ready_at = None if seconds is None else self.now + timedelta(seconds=seconds)
        if seconds is not None:
            job = placed(job, (self._node(create), ("GPU-0",)), at=self._seconds())
        self.jobs[create.name] = Live(job, create.role, ready_at)

    def _seconds(self) -> float:
        return (self.now - T0).total_seconds()

    def _node(self, create: CreateJob) -> str:
        """The first node that it need not avoid. Without one, the first."""
        free = (node for node in self.nodes if node not in create.avoid_nodes)
        return next(free, self.nodes[0])

    def _remove(self, name: str) -> None:
        live = self.jobs[name]
        if live.gone_at is None:
            metadata = replace(live.job.metadata, deletion_timestamp=self.now)
            live.job = replace(live.job, metadata=metadata)
            live.ready, live.ready_at = False, None
            live.gone_at = self.now + timedelta(seconds=self.drain_seconds)

    def lose_gate(self) -> None:
        """Its node is gone, and with it the requests that were held."""
        self.gates.clear()
        self.held.clear()

    def _gate(self, live: LiveGate) -> Gate:
        return Gate(live.pod, live.reported, live.reported_at)

    def _change_gates(self, changes: GateChanges) -> None:
        for pod in changes.removes:
            live = self.gates[pod.name]
            live.pod = replace(live.pod, leaving=True, ready=False)
            live.gone_at = self.now + timedelta(seconds=5)
        for ordinal in changes.creates:
            name = gate_name(self.service.metadata.name, ordinal)
            assert name not in self.gates, "a name that is in use"
            pod = GatePod(name, "team", f"uid-{name}-{self.now}", UID, self.gate_revision)
            self.gates[name] = LiveGate(pod, self.now, self.now + timedelta(seconds=2))

    def _age_gates(self) -> None:
        for name, live in list(self.gates.items()):
            if live.gone_at is not None and live.gone_at <= self.now:
                del self.gates[name]
            elif live.ready_at <= self.now and not live.pod.leaving:
                live.pod = replace(live.pod, ready=True, addresses=("10.0.0.9",))

    def _answer(self) -> None:
        """The gate forwards to the replicas of the status, and reports."""
        limit = timedelta(seconds=self.service.spec.replicas.cold_start_seconds)
        if self.ready() and any(one.ready for one in self.status.replicas):
            self.answered += len(self.held)
            self.held.clear()
        late = [one for one in self.held if self.now - one > limit]
        self.expired += len(late)
        self.held = [one for one in self.held if one not in late]
        for live in self.gates.values():
            if live.is_silent or live.ready_at > self.now:
                continue
            since = max(live.started_at, self.last_request_at)
            idle = 0.0 if self.held else (self.now - since).total_seconds()
            live.reported = GateReport(len(self.steps), len(self.held), 0, idle)
            live.reported_at = self.now

    def _age(self) -> None:
        for name, live in list(self.jobs.items()):
            if live.gone_at is not None and live.gone_at <= self.now:
                del self.jobs[name]
            elif live.again_at is not None and live.again_at <= self.now:
                live.again_at = None
                fresh = replace(live.job, status=GPUJobStatus())
                live.job = placed(fresh, attempt=2, at=self._seconds())
                live.ready_at = self.now + timedelta(seconds=3)
            elif live.ready_at is not None and live.ready_at <= self.now and not live.ready:
                status = replace(live.job.status, phase=JobPhase.RUNNING)
                live.job, live.ready = replace(live.job, status=status), True

    def _pod(self, live: Live) -> PodView:
        metadata, placement = live.job.metadata, live.job.status.placement
        return PodView(
            name=f"{metadata.name}-1-0",
            namespace=metadata.namespace,
            uid=f"pod-{metadata.uid}",
            job_uid=metadata.uid,
            attempt=live.job.status.attempt,
            rank=0,
            phase=PodPhase.RUNNING,
            node=placement.workers[0].node if placement is not None else None,
            addresses=("10.0.0.7",),
            ready=live.ready,
        )
