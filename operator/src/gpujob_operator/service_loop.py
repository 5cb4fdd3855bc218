"""The loop for services: read, decide, write, repeat.

* In: the services of the cache, the jobs, pods and reports of the newest snapshot, and the gates.
* Does: calls `plan_services`, while this process may act and there is a service.
* Out: gates, requests to park or to wake, and jobs for the replicas, which the scheduling loop
  admits and places like all others.
* Called by: `run`, which keeps it running.

It is apart from the scheduling loop, because a service changes a few times a minute, and a cycle
has thousands of jobs to look at.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_api.serving import ServingReport
from gpujob_operator.act.front_writer import FrontWriter
from gpujob_operator.act.service_writer import ServiceWriter
from gpujob_operator.decide.model.gates import Gate
from gpujob_operator.decide.model.service_plan import ServiceInputs, ServiceJob, ServicePlan
from gpujob_operator.decide.model.services import service_of
from gpujob_operator.decide.model.snapshot import PodView, Snapshot
from gpujob_operator.decide.model.workers import speaks_for
from gpujob_operator.port.parking import ParkingRequests

PERIOD_SECONDS = 1.0
# Rounds are at least this far apart, however often `wake` is called.
APART_SECONDS = 0.1

PlanServices = Callable[[Iterable[ServiceInputs], datetime], ServicePlan]


@dataclass(frozen=True, slots=True)
class GateSources:
    """Where a round gets what it needs to know of gates."""

    # All gates, with their newest reports.
    gates: Callable[[], tuple[Gate, ...]]
    # The revision of a service's new gates.
    revision: Callable[[GPUService], str]


class ServiceLoop:
    def __init__(
        self,
        *,
        services: Callable[[], tuple[GPUService, ...]],
        snapshot: Callable[[], Snapshot | None],
        plan: PlanServices,
        writer: ServiceWriter,
        front: FrontWriter,
        gates: GateSources,
        parking: ParkingRequests,
        may_act: Callable[[], bool],
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._services = services
        self._snapshot = snapshot
        self._plan = plan
        self._writer = writer
        self._front = front
        self._gates = gates
        self._parking = parking
        self._may_act = may_act
        self._clock = clock
        self._sleep = sleep
        self._period_seconds = period_seconds
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Makes the next round begin at once, because a request waits for a replica."""
        self._woken.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._sleep(APART_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_seconds - APART_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            await self.round()

    async def round(self) -> None:
        """Decides and writes once."""
        if not self._may_act():
            # Another leader may decide otherwise meanwhile.
            self._writer.forget_others(set())
            return
        services, snapshot = self._services(), self._snapshot()
        if not services or snapshot is None:
            return
        uids = {service.metadata.uid for service in services}
        self._writer.forget_others(uids)
        self._front.forget_others(uids)
        now = self._clock()
        gates = _by_service(services, self._gates.gates())
        found = service_inputs(services, snapshot, self._writer.problem, self._front.problem)
        inputs = [self._with_gates(one, gates[one.service.metadata.uid]) for one in found]
        plan = self._plan(inputs, now)
        self._parking.ask(plan.parking, now)
        for service in services:
            if service.metadata.deletion_timestamp is None:
                to_gate = service.metadata.uid in plan.to_gate
                await self._front.write(service, now, to_gate=to_gate)
        for step in plan.steps:
            await self._writer.write(step, now)

    def _with_gates(self, inputs: ServiceInputs, gates: list[Gate]) -> ServiceInputs:
        service, uid = inputs.service, inputs.service.metadata.uid
        # Also without a gate: an edit may wake replicas.
        inputs = replace(inputs, waking_since=self._parking.waking_since)
        if not gates and not service.spec.replicas.may_be_none:
            return inputs
        return replace(
            inputs,
            gates=tuple(gates),
            gate_problem=self._writer.gate_problem(uid),
            gate_revision=self._gates.revision(service),
            selects_gate=self._front.selects_gate(uid),
        )


def _by_service(services: Iterable[GPUService], gates: Iterable[Gate]) -> Mapping[str, list[Gate]]:
    """Returns the gates of each service, by its UID."""
    namespaces = {one.metadata.uid: one.metadata.namespace for one in services}
    found: dict[str, list[Gate]] = {uid: [] for uid in namespaces}
    for gate in sorted(gates, key=lambda one: one.pod.name):
        if namespaces.get(gate.pod.service_uid) == gate.pod.namespace:
            found[gate.pod.service_uid].append(gate)
    return found


def service_inputs(
    services: Iterable[GPUService],
    snapshot: Snapshot,
    problem: Callable[[str], str],
    front_problem: Callable[[str], str],
) -> tuple[ServiceInputs, ...]:
    """Returns the services with their jobs, which are those that they control.

    A job of another namespace is none of them, whatever its author wrote into its metadata: a gate
    would send it the requests of others.
    """
    services = tuple(services)
    namespaces = {one.metadata.uid: one.metadata.namespace for one in services}
    jobs: dict[str, list[GPUJob]] = defaultdict(list)
    for job in snapshot.jobs:
        service = service_of(job)
        if service is not None and namespaces.get(service.uid) == job.metadata.namespace:
            jobs[service.uid].append(job)
    wanted = {job.metadata.uid for owned in jobs.values() for job in owned}
    # A pod whose owner reference was removed still belongs to the job that recorded it.
    recorded = _recorded_pods(job for owned in jobs.values() for job in owned)
    pods: dict[str, list[PodView]] = defaultdict(list)
    for pod in snapshot.pods:
        job_uid = recorded.get(pod.uid, pod.job_uid)
        if job_uid in wanted:
            pods[job_uid].append(pod)
    reports = {
        one.job_uid: one.report.serving
        for one in snapshot.reports
        if one.job_uid in wanted and one.report.serving is not None
    }
    return tuple(
        ServiceInputs(
            service,
            tuple(_with_pod(job, pods, reports) for job in jobs[service.metadata.uid]),
            problem(service.metadata.uid),
            front_problem(service.metadata.uid),
            configuration=snapshot.configuration,
        )
        for service in services
    )


def _recorded_pods(jobs: Iterable[GPUJob]) -> Mapping[str, str]:
    """Returns the UIDs of the jobs whose placements have these pods, by the pod's UID."""
    return {
        worker.pod_uid: job.metadata.uid
        for job in jobs
        if job.status.placement is not None
        for worker in job.status.placement.workers
        if worker.pod_uid is not None
    }


def _with_pod(
    job: GPUJob, pods: dict[str, list[PodView]], reports: dict[str, ServingReport]
) -> ServiceJob:
    uid = job.metadata.uid
    current = [
        pod
        for pod in pods.get(uid, ())
        if pod.attempt == job.status.attempt and speaks_for(pod, job)
    ]
    pod = current[0] if current else None
    report = reports.get(uid)
    if pod is not None and pod.termination is not None and pod.termination.serving is not None:
        # The last words of a process that has ended.
        report = pod.termination.serving
    return ServiceJob(job, pod, report)
