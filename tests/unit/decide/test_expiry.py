"""Finished jobs that do not stay: `spec.ttlSecondsAfterFinished`."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.plan import DeleteJob, Plan
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import after, make_job, make_snapshot, running, with_status

pytestmark = pytest.mark.promise("I5")


def finished(seconds: int | None, phase: JobPhase = JobPhase.SUCCEEDED, **status: Any) -> GPUJob:
    job = make_job(ttl_seconds_after_finished=seconds)
    ended = {"finished_at": after(100), "observed_generation": 1}
    return with_status(job, phase=phase, **(ended | status))


def deleted(decided: Plan) -> list[str]:
    return [one.job.metadata.name for one in decided.items if isinstance(one, DeleteJob)]


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_finished_job_goes_when_its_time_is_over(phase: JobPhase) -> None:
    snapshot = make_snapshot(finished(60, phase))
    early = plan(snapshot, after(159))
    assert deleted(early) == []
    assert early.next_seconds == 1
    assert deleted(plan(snapshot, after(160))) == ["job"]


def test_without_a_time_to_live_it_stays() -> None:
    decided = plan(make_snapshot(finished(None)), after(10**8))
    assert deleted(decided) == []
    assert decided.next_seconds is None


def test_a_job_that_runs_on_does_not_go() -> None:
    """Whatever its status says of an end."""
    job = running(make_job(ttl_seconds_after_finished=0), finished_at=after(1))
    assert deleted(plan(make_snapshot(job), after(1000))) == []


def test_a_job_that_somebody_deletes_is_not_deleted_again() -> None:
    job = finished(0)
    leaving = replace(job, metadata=replace(job.metadata, deletion_timestamp=after(150)))
    assert deleted(plan(make_snapshot(leaving), after(200))) == []


def test_it_is_asked_for_until_the_job_is_gone_and_no_longer() -> None:
    """I8: with what earlier cycles kept, every plan is that of a fresh one."""
    planner, job = Planner(), finished(60)
    snapshot = make_snapshot(job)
    for seconds in (150, 160, 161, 400):
        assert deleted(planner(snapshot, after(seconds))) == deleted(plan(snapshot, after(seconds)))
    assert deleted(planner(make_snapshot(), after(401))) == []
    kept = replace(job, spec=replace(job.spec, ttl_seconds_after_finished=None))
    assert deleted(planner(make_snapshot(kept), after(402))) == []
    longer = replace(job, spec=replace(job.spec, ttl_seconds_after_finished=600))
    assert planner(make_snapshot(longer), after(500)).next_seconds == 200
