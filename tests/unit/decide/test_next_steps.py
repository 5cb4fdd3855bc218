"""Each reason of a job that waits or failed has a next step, or a message that has it."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobFailure, JobPhase, Measurement, SharingMode
from gpujob_api.quantities import GIB
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
    found = next_step(_waiting(make_job("train", queue="vision"), reason))
    assert "{" not in found
    assert bool(found) is (reason not in (PendingReason.SPEC_REJECTED, PendingReason.POD_REJECTED))


def _waiting(job: GPUJob, reason: PendingReason = PendingReason.INSUFFICIENT_CAPACITY) -> GPUJob:
    writer = ConditionWriter(job, job.status, T0)
    writer.set(SCHEDULED, False, reason.value, "the message")
    return replace(job, status=replace(job.status, conditions=writer.conditions))


@pytest.mark.parametrize("memory_bytes", [None, 8 * GIB])
@pytest.mark.parametrize("mode", [SharingMode.AUTO, SharingMode.SHARED])
def test_less_memory_is_advised_only_as_a_limit(
    mode: SharingMode, memory_bytes: int | None
) -> None:
    """Without sharing.mode Shared, a lower request changes nothing but the GPUs that count."""
    found = next_step(_waiting(make_job(sharing=mode, memory_bytes=memory_bytes)))
    limited = mode is SharingMode.SHARED and memory_bytes is not None
    assert ("A lower spec.gpu.memory" in found) is limited
    assert ("spec.sharing.mode Shared" in found) is not limited


def test_a_job_that_reserves_what_it_was_measured_to_use_can_only_wait() -> None:
    measured = with_status(
        make_job(memory_bytes=8 * GIB), measurement=Measurement(2 * GIB, 50.0, 20)
    )
    assert "spec." not in next_step(_waiting(measured))


@pytest.mark.parametrize(
    "job", [make_job(sharing=SharingMode.EXCLUSIVE), make_job(gpus_per_worker=2)]
)
def test_a_job_that_cannot_share_can_only_wait(job: GPUJob) -> None:
    assert "spec." not in next_step(_waiting(job))


def test_a_job_that_no_gpu_fits_is_advised_by_its_cause() -> None:
    reason = PendingReason.UNSATISFIABLE
    plain = make_job("train")
    failure = JobFailure(FailureClass.OUT_OF_MEMORY, "CPU card out of memory")
    assert next_step(_waiting(plain, reason)) == OF_PENDING[reason]
    assert "smaller batch" in next_step(_waiting(with_status(plain, failure=failure), reason))
    named = replace(plain, spec=replace(plain.spec, gpu=replace(plain.spec.gpu, models=("H100",))))
    assert "another model" in next_step(_waiting(named, reason))


@pytest.mark.parametrize("failure", FailureClass)
def test_a_failed_jobs_step(failure: FailureClass) -> None:
    job = with_status(make_job("train"), phase=JobPhase.FAILED, failure=JobFailure(failure, "x"))
    assert next_step(job)
    assert "{" not in next_step(job)


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.SUCCEEDED, JobPhase.PENDING])
def test_without_a_reason_there_is_none(phase: JobPhase) -> None:
    assert next_step(with_status(make_job(), phase=phase)) == ""
