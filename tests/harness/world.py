"""A cluster that does at once what a plan says: for stories about who is placed and who leaves.

Pods run as soon as they exist and end as soon as they are deleted, having saved. Nothing is
measured unless the test says so; for faults and delays there is the simulation.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.gpunode import GPUNode
from gpujob_api.settings import EXIT_DONE, EXIT_INTERRUPTED_SAVED
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.plan import Plan, TryTemplate
from gpujob_operator.decide.model.snapshot import PodPhase, PodView, Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.applied import applied
from tests.harness.builders import after, make_snapshot

SETTLE_MAX = 20


class World:
    """`tick` plans and applies until nothing changes any more; time passes between ticks only."""

    def __init__(self, *jobs: GPUJob, **snapshot: Any) -> None:
        self.snapshot: Snapshot = make_snapshot(*jobs, **snapshot)
        self.seconds = 0.0
        # Pods of these jobs stay after SIGTERM until `end`.
        self.stubborn: set[str] = set()

    @property
    def now(self) -> datetime:
        return after(self.seconds)

    def job(self, name: str) -> GPUJob:
        return next(job for job in self.snapshot.jobs if job.metadata.name == name)

    def status(self, name: str) -> GPUJobStatus:
        return self.job(name).status

    def phase(self, name: str) -> JobPhase:
        return self.status(name).phase

    def why(self, name: str) -> str:
        """Reason and message of the job's Scheduled condition."""
        found = find(self.status(name), SCHEDULED)
        return f"{found.reason}: {found.message}" if found is not None else ""

    def running(self) -> set[str]:
        return {j.metadata.name for j in self.snapshot.jobs if j.status.phase is JobPhase.RUNNING}

    def gpus(self, name: str) -> set[str]:
        placement = self.status(name).placement
        return (
            {uuid for worker in placement.workers for uuid in worker.gpus} if placement else set()
        )

    def submit(self, *jobs: GPUJob) -> None:
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, *jobs))

    def change(self, name: str, **status: Any) -> None:
        """Sets fields of a job's status (a measurement, a checkpoint)."""
        changed = (
            replace(job, status=replace(job.status, **status)) if job.metadata.name == name else job
            for job in self.snapshot.jobs
        )
        self.snapshot = replace(self.snapshot, jobs=tuple(changed))

    def end(self, name: str, exit_code: int = EXIT_DONE) -> None:
        """The job's workers end by themselves."""
        uid = self.job(name).metadata.uid
        self._pods(_ended(pod, exit_code) if pod.job_uid == uid else pod for pod in self._live())

    def tick(self, seconds: float = 1.0) -> None:
        self.seconds += seconds
        for _ in range(SETTLE_MAX):
            self.refresh()
            if all(isinstance(item, TryTemplate) for item in self.step().items):
                # A trial that is not answered is repeated.
                return
        raise AssertionError(f"the plan has not settled after {SETTLE_MAX} cycles")

    def refresh(self) -> None:
        """Agents read their GPUs again, and workers report."""
        measured = tuple(_measured(node, self.now) for node in self.snapshot.gpu_nodes)
        jobs = tuple(_progressed(job, self.now) for job in self.snapshot.jobs)
        self.snapshot = replace(self.snapshot, gpu_nodes=measured, jobs=jobs)

    def step(self) -> Plan:
        """One cycle, and what pods do at once."""
        decided = self.decide(self.snapshot, self.now)
        self.snapshot = applied(self.snapshot, decided, self.now)
        self._pods(self._moved(pod) for pod in self._live())
        return decided

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        return plan(snapshot, now)

    def _moved(self, pod: PodView) -> PodView:
        names = {job.metadata.uid: job.metadata.name for job in self.snapshot.jobs}
        if pod.deletion_at is not None and names.get(pod.job_uid) not in self.stubborn:
            return _ended(pod, EXIT_INTERRUPTED_SAVED)
        if pod.phase is PodPhase.PENDING:
            return replace(pod, phase=PodPhase.RUNNING)
        return pod

    def _live(self) -> tuple[PodView, ...]:
        return tuple(pod for pod in self.snapshot.pods if not pod.finished)

    def _pods(self, live: Iterable[PodView]) -> None:
        done = tuple(pod for pod in self.snapshot.pods if pod.finished)
        self.snapshot = replace(self.snapshot, pods=(*done, *live))


def _ended(pod: PodView, exit_code: int) -> PodView:
    phase = PodPhase.SUCCEEDED if exit_code == EXIT_DONE else PodPhase.FAILED
    return replace(pod, phase=phase, exit_code=exit_code)


def _measured(node: GPUNode, now: datetime) -> GPUNode:
    return replace(node, status=replace(node.status, observed_at=now))


def _progressed(job: GPUJob, now: datetime) -> GPUJob:
    """Nobody hangs here."""
    if job.status.phase is not JobPhase.RUNNING:
        return job
    return replace(job, status=replace(job.status, progressed_at=now))
