"""Whether a worker hangs of which no report arrives."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, Measurement
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
    used,
    with_status,
)
from tests.harness.services import as_replica
from tests.harness.world import World

GIB = 1024**3
BUSY_PERCENT, IDLE_PERCENT = 90.0, 0.2
# The last sign of progress was long before.
NOW = 3701.0


def trained(**fields: Any) -> GPUJob:
    """A job that made 500 steps and reported them."""
    job = running(make_job("a", **fields), progressed_at=after(2000))
    return with_status(job, measurement=measured(4 * GIB, 500, 90.0), reservation=reserve(5 * GIB))


def decided(
    job: GPUJob,
    utilization_percent: float | None,
    *,
    heard_at: float = 2000.0,
    read_at: float = NOW,
    absent_since: datetime | None = None,
    **pod: Any,
) -> Plan:
    node = make_gpu_node(
        "n0", make_gpu(ours=[(f"uid-{job.metadata.name}-1-0", 4 * GIB)]), at=read_at
    )
    seen = {}
    if utilization_percent is not None:
        usage = used(4 * GIB, utilization_percent, 900, absent_since=absent_since)
        seen = {(job.metadata.uid, 1): usage}
    snapshot = make_snapshot(
        job,
        pods=[replace(make_pod(job), **pod)],
        gpu_nodes=[node],
        reports=[received(job, make_report(step=500), at=heard_at)],
        usage=seen,
    )
    return plan(snapshot, after(NOW))


def phase(job: GPUJob, found: Plan) -> JobPhase:
    return statuses(found.items).get(job.metadata.name, job.status).phase


@pytest.mark.parametrize(
    ("utilization_percent", "heard_at", "read_at", "expected"),
    [
        pytest.param(BUSY_PERCENT, 2000.0, NOW, JobPhase.RUNNING, id="busy"),
        pytest.param(IDLE_PERCENT, 2000.0, NOW, JobPhase.STOPPING, id="idle"),
        pytest.param(None, 2000.0, NOW, JobPhase.STOPPING, id="not on its GPU"),
        pytest.param(IDLE_PERCENT, 2000.0, NOW - 600, JobPhase.RUNNING, id="readings are old"),
        pytest.param(BUSY_PERCENT, NOW - 5, NOW, JobPhase.STOPPING, id="reports no progress"),
    ],
)
def test_without_reports_the_gpu_shows_whether_a_worker_works(
    utilization_percent: float | None, heard_at: float, read_at: float, expected: JobPhase
) -> None:
    job = trained()
    found = decided(job, utilization_percent, heard_at=heard_at, read_at=read_at)
    assert phase(job, found) is expected


@pytest.mark.parametrize(("absent_seconds", "works"), [(2, True), (70, False)])
def test_a_worker_whose_processes_are_gone_does_not_work(
    absent_seconds: float, *, works: bool
) -> None:
    """Its last readings showed it busy. One that leaves it out proves nothing."""
    job = trained()
    absent = after(NOW - absent_seconds)
    found = decided(job, BUSY_PERCENT, absent_since=absent)
    assert (phase(job, found) is JobPhase.RUNNING) is works


@pytest.mark.parametrize("ready", [True, False])
def test_without_reports_the_probe_shows_whether_a_replica_works(*, ready: bool) -> None:
    """It may have no requests."""
    job = trained()
    replica = as_replica(job)
    expected = JobPhase.RUNNING if ready else JobPhase.STOPPING
    assert phase(replica, decided(replica, IDLE_PERCENT, ready=ready)) is expected
    assert phase(job, decided(job, IDLE_PERCENT, ready=True)) is JobPhase.STOPPING, "has no probe"


def test_a_silent_worker_is_looked_at_now_and_then() -> None:
    found = decided(trained(), BUSY_PERCENT)
    assert found.next_seconds is not None
    assert found.next_seconds >= 10


class Cut(World):
    """Workers run and their GPUs are busy, but no report arrives."""

    def refresh(self) -> None:
        jobs = self.snapshot.jobs
        super().refresh()
        seen = {
            (job.metadata.uid, job.status.attempt): used(4 * GIB, BUSY_PERCENT, 900) for job in jobs
        }
        self.snapshot = replace(self.snapshot, jobs=jobs, usage=seen)


def test_a_job_whose_reports_never_arrive_is_not_stopped_for_that() -> None:
    world = Cut(with_status(make_job("a"), measurement=measured(4 * GIB, 500, 90.0)))
    for _ in range(6 * 60):
        world.tick(60)
    assert world.phase("a") is JobPhase.RUNNING
    assert world.status("a").attempt == 1


@pytest.mark.parametrize("agent_is_back", [True, False])
def test_an_operator_that_restarted_judges_by_readings_of_now(*, agent_is_back: bool) -> None:
    """The job is of another framework and never reported (I14)."""
    job = with_status(
        running(make_job("a")),
        reservation=reserve(5 * GIB),
        measurement=Measurement(4 * GIB, 80.0, 3000),
    )
    now = 86_400.0 + 4000
    usage = {(job.metadata.uid, 1): used(4 * GIB, 80.0, 900)} if agent_is_back else {}
    snapshot = make_snapshot(
        job,
        pods=[make_pod(job)],
        usage=usage,
        listening_since=after(86_400),
        gpu_nodes=[make_gpu_node("n0", at=now - 1 if agent_is_back else 86_300)],
    )
    found = statuses(plan(snapshot, after(now)).items).get("a", job.status)
    assert found.phase is JobPhase.RUNNING
