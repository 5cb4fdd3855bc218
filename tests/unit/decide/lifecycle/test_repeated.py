"""The same error at the same step twice is not tried a third time."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.report import CheckpointReport, FailureClass
from gpujob_operator.decide.model.snapshot import PodView
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
    running,
    statuses,
    with_status,
)

GIB = 1024**3
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 3x8)"


def ended(job: GPUJob, **facts: Any) -> GPUJob:
    """The job after its attempt ended like this."""
    merged: dict[str, Any] = {"exit_code": 1, **facts}
    pod: PodView = make_pod(job, **merged)
    node = make_gpu_node("n0", make_gpu("GPU-0"), at=10)
    found = plan(make_snapshot(job, pods=(pod,), gpu_nodes=[node]), after(10))
    return replace(job, status=statuses(found.items)["job"])


def again(job: GPUJob) -> GPUJob:
    """Its next attempt runs."""
    assert job.status.phase is JobPhase.PENDING, job.status.failure
    place = running(make_job()).status
    return with_status(
        job,
        phase=JobPhase.RUNNING,
        attempt=job.status.attempt + 1,
        placement=place.placement,
        reservation=place.reservation,
    )


def reported(step: int, message: str = SHAPES, kind: FailureClass = FailureClass.USER_ERROR) -> Any:
    return {"termination": make_report(attempt=1, step=step, failure=kind, message=message)}


def said(job: GPUJob) -> str:
    return next((c.message for c in job.status.conditions if c.type == "Failed"), "")


@pytest.mark.parametrize("kind", [FailureClass.USER_ERROR, FailureClass.DATA, FailureClass.UNKNOWN])
def test_twice_the_same_at_the_same_step_is_the_end(kind: FailureClass) -> None:
    job = again(ended(running(make_job()), **reported(7, kind=kind)))
    job = ended(job, **reported(7, kind=kind))
    assert job.status.phase is JobPhase.FAILED
    assert "failed at step 7 with the same error" in said(job)
    assert "(retry 2 of 3 was left)" in said(job)
    assert SHAPES in said(job)


def test_the_last_line_of_the_log_tells_of_a_script_that_reports_nothing() -> None:
    """With other moments and addresses."""
    first = f"12:30:01 start\n2026-11-28 12:30:05.123 <Net at 0x7f00aa> {SHAPES}"
    second = f"14:02:11 start\n2026-11-28 14:02:15.001 <Net at 0x7f11bb> {SHAPES}\n"
    job = again(ended(running(make_job()), termination_text=first))
    assert ended(job, termination_text=second).status.phase is JobPhase.FAILED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "worker (pid 46) is killed by signal: Bus error",
            "worker (pid 57) is killed by signal: Bus error",
        ),
        ("pid(s) 4, 5 exited unexpectedly", "pid(s) 6, 7 exited unexpectedly"),
        ("cannot read /tmp/tmpa81x/x.bin", "cannot read /tmp/tmpq9_z/x.bin"),
        ("run 3f2a91bc-11d0-4e2a failed", "run 77e2b0aa-90c1-4a0b failed"),
    ],
)
def test_what_differs_by_chance_is_the_same_error(first: str, second: str) -> None:
    job = again(ended(running(make_job()), **reported(7, f"RuntimeError: {first}")))
    assert ended(job, **reported(7, f"RuntimeError: {second}")).status.phase is JobPhase.FAILED


@pytest.mark.parametrize(
    "second",
    [
        reported(9),
        reported(7, "RuntimeError: another one"),
        reported(7, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 6x8)"),
        {"exit_code": 137, "reason": "OOMKilled"},
    ],
    ids=["another step", "another error", "other numbers", "another end"],
)
def test_what_differs_is_tried_as_often_as_the_user_allows(second: Any) -> None:
    job = again(ended(running(make_job()), **reported(7)))
    job = again(ended(job, **second))
    assert ended(job, **reported(7)).status.phase is JobPhase.PENDING


@pytest.mark.parametrize(
    "facts",
    [
        {"termination_text": "ConnectionError: connection refused"},
        {"termination_text": "OSError: [Errno 28] No space left on device"},
        {"termination_text": "RuntimeError: NCCL error in ProcessGroupNCCL"},
        {"exit_code": 139},
        {"exit_code": 137, "reason": "OOMKilled"},
        reported(7, kind=FailureClass.OUT_OF_MEMORY),
        reported(7, kind=FailureClass.CHECKPOINT),
    ],
)
def test_what_may_pass_or_is_not_known_is_no_repetition(facts: dict[str, Any]) -> None:
    job = again(ended(running(make_job()), **facts))
    assert ended(job, **facts).status.phase is JobPhase.PENDING


def test_an_interruption_between_them_says_nothing_of_the_error() -> None:
    job = again(ended(running(make_job()), **reported(7)))
    job = again(ended(job, exit_code=143))
    assert ended(job, **reported(7)).status.phase is JobPhase.FAILED


def test_the_limit_is_said_where_it_is_reached() -> None:
    job = again(ended(running(make_job(retries=1)), **reported(7)))
    assert "retry.limit is 1" in said(ended(job, **reported(7)))


def broke_off(attempt: int, step: int = 40) -> dict[str, Any]:
    """As `os._exit(0)` ends a script, which a stop that leaves no sign may do too."""
    return {"exit_code": 0, "termination": make_report(attempt, step=step, steps_total=1000)}


def test_a_script_that_ends_early_twice_by_itself_does_so_each_time() -> None:
    job = ended(running(make_job()), **broke_off(1))
    assert job.status.phase is JobPhase.PENDING
    assert job.status.counters.errors == 0
    job = ended(again(ended(again(job), exit_code=143)), **broke_off(3, step=57))
    assert job.status.phase is JobPhase.FAILED
    assert "nothing asked it to end" in said(job)
    assert "not tried again" in said(job)


def test_a_script_that_ends_early_and_gets_on_is_started_again() -> None:
    """Its checkpoint shows it."""
    job = ended(running(make_job()), **broke_off(1))
    for attempt in range(2, 6):
        saved = make_report(
            attempt, step=40 * attempt, checkpoint_step=40 * attempt, steps_total=1000
        )
        job = ended(again(job), exit_code=0, termination=saved)
        assert job.status.phase is JobPhase.PENDING


def test_an_early_end_with_a_sign_from_outside_is_none_by_itself() -> None:
    job = running(make_job())
    for attempt in range(1, 5):
        job = ended(job, **broke_off(attempt), reason="Evicted")
        assert job.status.last_error is None
        job = again(job)


def test_an_error_is_over_once_an_attempt_came_past_its_step() -> None:
    """A start fails in January and, after months of training and a drained node, in March."""
    late = "FileNotFoundError: [Errno 2] No such file or directory: '/data/index.json'"
    error = reported(0, late, FailureClass.DATA)
    job = again(ended(running(make_job()), **error))
    job = with_status(
        job,
        measurement=measured(GIB, step=5_000_000),
        checkpoint=CheckpointReport(5_000_000),
        stop=StopReason("NodeDrained", "node n0 is drained", after(40)),
    )
    job = again(ended(job, exit_code=143))
    assert ended(job, **error).status.phase is JobPhase.PENDING
    assert ended(again(ended(job, **error)), **error).status.phase is JobPhase.FAILED
