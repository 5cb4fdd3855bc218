"""A service with its jobs in virtual time: jobs start, answer, are interrupted, fail and drain."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobFailure, JobPhase, StopReason
from gpujob_api.gpuservice import GPUService, GPUServiceSpec, GPUServiceStatus
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.meta import Metadata
from gpujob_api.report import FailureClass
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.service_plan import (
    CreateJob,
    Role,
    ServiceInputs,
    ServiceJob,
    ServiceStep,
)
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
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
        step = step_of(self.inputs(), self.now)
        self.steps.append(step)
        for create in step.creates:
            assert create.name not in self.jobs, "a name that is in use"
            self._create(create)
        for remove in step.removes:
            self._remove(remove.job.metadata.name)
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
        return ServiceInputs(self.service, jobs, self.problem)

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
            job = placed(job, (self._node(create), ("GPU-0",)))
        self.jobs[create.name] = Live(job, create.role, ready_at)

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

    def _age(self) -> None:
        for name, live in list(self.jobs.items()):
            if live.gone_at is not None and live.gone_at <= self.now:
                del self.jobs[name]
            elif live.again_at is not None and live.again_at <= self.now:
                live.again_at = None
                live.job = placed(replace(live.job, status=GPUJobStatus()), attempt=2)
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
