"""The condition `Untuned`: a job of an image that the worker cannot be put into says why."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, ReservationSource
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.report import Report
from gpujob_api.settings import OptimizeMode
from gpujob_operator.decide.model import conditions
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

JOB = running(make_job("silent"), held=reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0))
AT = 70.0
TOO_OLD = "everything skipped: torch 2.3.1 is older than 2.4"


def decided(
    job: GPUJob = JOB,
    *,
    report: Report | None = None,
    samples: int = 30,
    exit_code: int | None = None,
) -> GPUJobStatus:
    uid = job.metadata.uid
    snapshot = make_snapshot(
        job,
        pods=[make_pod(job, exit_code=exit_code)],
        gpu_nodes=[make_gpu_node("n0", make_gpu(), at=AT)],
        usage={(uid, 1): used(GIB, 30.0, samples)},
        reports=(received(job, report, AT),) if report is not None else (),
    )
    return statuses(plan(snapshot, after(AT)).items).get(job.metadata.name, job.status)


def untuned(status: GPUJobStatus) -> Condition | None:
    return conditions.find(status, conditions.UNTUNED)


def test_a_job_without_reports_says_so_once_it_is_measured_from_outside() -> None:
    assert untuned(decided(samples=29)) is None
    status = decided(samples=30)
    found = untuned(status)
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.TRUE, "NoReports")
    assert found.message.startswith("not tuned: it does not report")
    assert "it reserves 1.25 GiB and 30 % of each of its GPUs" in found.message
    # It makes room all the same.
    assert status.reservation is not None
    assert status.reservation.memory_bytes < 2 * GIB


def test_what_the_worker_says_of_itself_is_said() -> None:
    found = untuned(decided(report=make_report(current=None, explain=(TOO_OLD,))))
    assert found is not None
    assert (found.reason, found.message) == (
        "Skipped",
        "not tuned: torch 2.3.1 is older than 2.4",
    )


def test_a_job_that_reports_says_nothing() -> None:
    assert untuned(decided(report=make_report(explain=("compile skipped: no gain",)))) is None


def test_an_attempt_before_this_one_says_nothing_of_it() -> None:
    assert untuned(decided(report=make_report(attempt=2))) is not None


def test_it_is_over_once_the_worker_reports() -> None:
    job = replace(JOB, status=decided())
    assert untuned(job.status) is not None
    assert untuned(decided(job, report=make_report())) is None


def test_reports_that_came_late_leave_nothing_at_the_end() -> None:
    """I9: a job ends the same, however late its first report came."""
    job = replace(JOB, status=decided())
    assert untuned(job.status) is not None
    assert untuned(decided(job, report=make_report(step=9), exit_code=0)) is None


@pytest.mark.parametrize("samples", [30, 3000])
def test_reports_that_stop_are_no_reason(samples: int) -> None:
    assert untuned(decided(with_status(JOB, measurement=measured(GIB)), samples=samples)) is None


def test_nobody_asked() -> None:
    job = running(make_job("silent", optimize=Optimize(mode=OptimizeMode.OFF)))
    assert untuned(decided(job)) is None
    assert untuned(decided(job, exit_code=0)) is None


@pytest.mark.parametrize(
    ("report", "reason", "words"),
    [
        (None, "NoReports", "it did not report"),
        (make_report(step=0, current=None), "NoSteps", "without a step of an optimizer"),
        (make_report(step=0, current=None, explain=(TOO_OLD,)), "Skipped", "older than 2.4"),
    ],
)
def test_a_short_job_says_it_at_its_end(report: Report | None, reason: str, words: str) -> None:
    found = untuned(decided(report=report, samples=3, exit_code=0))
    assert found is not None
    assert found.reason == reason
    assert words in found.message


def test_a_job_that_trained_says_nothing_at_its_end() -> None:
    assert untuned(decided(report=make_report(step=9), samples=3, exit_code=0)) is None
