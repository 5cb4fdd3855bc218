"""Each reason of a job that waits or failed has a next step, or a message that has it."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import JobFailure, JobPhase
from gpujob_api.report import FailureClass
from gpujob_operator.decide.model.conditions import SCHEDULED, ConditionWriter
from gpujob_operator.decide.model.next_steps import OF_FAILED, OF_PENDING, next_step
from gpujob_operator.decide.model.pending_reasons import PendingReason
from tests.harness.builders import T0, make_job, with_status


def test_every_reason_is_in_a_table() -> None:
    assert set(OF_PENDING) == set(PendingReason)
    assert set(OF_FAILED) == set(FailureClass)


@pytest.mark.parametrize("reason", PendingReason)
def test_a_pending_jobs_step_names_the_job_and_its_queue(reason: PendingReason) -> None:
    job = make_job("train", queue="vision")
    writer = ConditionWriter(job, job.status, T0)
    writer.set(SCHEDULED, False, reason.value, "the message")
    found = next_step(replace(job, status=replace(job.status, conditions=writer.conditions)))
    assert "{" not in found
    assert bool(found) is (reason not in (PendingReason.SPEC_REJECTED, PendingReason.POD_REJECTED))


@pytest.mark.parametrize("failure", FailureClass)
def test_a_failed_jobs_step(failure: FailureClass) -> None:
    job = with_status(make_job("train"), phase=JobPhase.FAILED, failure=JobFailure(failure, "x"))
    assert next_step(job)
    assert "{" not in next_step(job)


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.SUCCEEDED, JobPhase.PENDING])
def test_without_a_reason_there_is_none(phase: JobPhase) -> None:
    assert next_step(with_status(make_job(), phase=phase)) == ""
