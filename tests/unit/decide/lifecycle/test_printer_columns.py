"""Printer columns: progress in steps, and what is in its way; a speed-up only where one was
measured, and is in force.
"""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, Reservation, ReservationSource
from gpujob_api.quantities import GIB
from gpujob_api.report import Speedup, Timing, WorkerPhase
from gpujob_api.settings import OptimizeMode, Task
from gpujob_operator.decide.lifecycle.printer_columns import summarize
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.snapshot import ReceivedReport
from tests.harness.builders import T0, make_job, make_report, measured, running, with_status

GAIN = Speedup(1.42, 1.38, 1.46, 10)


def job(mode: OptimizeMode, speedup: Speedup | None) -> GPUJob:
    made = running(make_job())
    spec = replace(made.spec, optimize=replace(made.spec.optimize, mode=mode))
    seen = replace(measured(GIB, step=9), baseline=Timing(0.4, GIB), speedup=speedup)
    return with_status(replace(made, spec=spec), measurement=seen)


@pytest.mark.parametrize(
    ("mode", "speedup", "text"),
    [
        (OptimizeMode.AUTO, GAIN, "100 ms/step, 1.42x (1.38 to 1.46)"),
        (OptimizeMode.AUTO, None, "100 ms/step"),
        (OptimizeMode.RECOMMEND, GAIN, "100 ms/step"),
        (OptimizeMode.RECOMMEND, None, "100 ms/step"),
        (OptimizeMode.OFF, GAIN, "100 ms/step"),
        (OptimizeMode.OFF, None, "100 ms/step"),
    ],
)
def test_the_speed_column(mode: OptimizeMode, speedup: Speedup | None, text: str) -> None:
    found = job(mode, speedup)
    assert summarize(found, found.status, found.status, ()).speed == text


@pytest.mark.parametrize(
    ("step", "total", "text"),
    [
        (0, None, ""),
        (0, 100, ""),
        (7, None, "step 7"),
        (7, 100, "7/100 7%"),
        (999, 1000, "999/1000 99%"),
        (1000, 1000, "1000/1000 100%"),
        # A script may go on for longer than it said.
        (1200, 1000, "1200/1000 100%"),
    ],
)
def test_the_progress_column(step: int, total: int | None, text: str) -> None:
    made = running(make_job())
    seen = replace(measured(GIB, step=step), steps_total=total)
    found = with_status(made, measurement=seen)
    assert summarize(found, found.status, found.status, ()).progress == text


@pytest.mark.parametrize(
    ("step", "total", "text"),
    [
        (0, None, ""),
        (1, None, "1 call"),
        (1200, None, "1200 calls"),
        (1200, 5000, "1200/5000 calls 24%"),
    ],
)
def test_an_inference_run_shows_its_calls(step: int, total: int | None, text: str) -> None:
    seen = replace(measured(GIB, step=step), steps_total=total, task=Task.INFERENCE)
    found = with_status(running(make_job()), measurement=seen)
    assert summarize(found, found.status, found.status, ()).progress == text
    assert summarize(found, found.status, found.status, ()).speed == "100 ms/call"
    untimed = with_status(found, measurement=replace(seen, current=None))
    speed = f"{step} call{'s' * (step != 1)}" if step else ""
    assert summarize(untimed, untimed.status, untimed.status, ()).speed == speed


@pytest.mark.parametrize(
    ("phase", "attempt", "text"),
    [
        (WorkerPhase.TRAINING, 1, "step 7"),
        (WorkerPhase.TUNING, 1, "step 7, tuning"),
        (WorkerPhase.TUNING, 2, "step 7"),
    ],
)
def test_it_is_said_that_training_stands_still_for_trials(
    phase: WorkerPhase, attempt: int, text: str
) -> None:
    job = with_status(running(make_job()), measurement=measured(GIB, step=7))
    report = ReceivedReport(
        job.metadata.uid, 0, T0, make_report(step=7, phase=phase, attempt=attempt)
    )
    assert summarize(job, job.status, job.status, (), report).progress == text


@pytest.mark.parametrize(
    ("phase", "kind", "value", "reason", "text"),
    [
        (
            JobPhase.PENDING,
            conditions.SCHEDULED,
            False,
            "InsufficientCapacity",
            "InsufficientCapacity",
        ),
        (JobPhase.PENDING, conditions.SCHEDULED, False, "Suspended", "Suspended"),
        (JobPhase.STARTING, conditions.RUNNING, False, "Starting", ""),
        (JobPhase.STARTING, conditions.RUNNING, False, "ImagePullBackOff", "ImagePullBackOff"),
        (JobPhase.RUNNING, conditions.RUNNING, True, "WorkersRunning", ""),
        (JobPhase.RUNNING, conditions.RUNNING, None, "NodeUnreachable", "NodeUnreachable"),
        (JobPhase.RUNNING, conditions.UNTUNED, True, "NoReports", "untuned"),
        (JobPhase.STOPPING, conditions.RUNNING, False, "Preempted", "Preempted"),
        (JobPhase.SUCCEEDED, conditions.SUCCEEDED, True, "Completed", ""),
        (JobPhase.SUCCEEDED, conditions.UNTUNED, True, "Skipped", "untuned"),
        (JobPhase.FAILED, conditions.SUCCEEDED, False, "UserError", "UserError"),
    ],
)
def test_the_progress_column_says_what_is_in_the_way(
    phase: JobPhase, kind: str, value: bool | None, reason: str, text: str
) -> None:
    """The table that everybody sees first has no other column for it."""
    job = with_status(running(make_job()), phase=phase)
    stated = ConditionWriter(job, replace(job.status, conditions=()), T0)
    stated.set(kind, value, reason, "in words")
    assert summarize(job, job.status, stated, ()).progress == text
    far = with_status(job, measurement=measured(GIB, step=7)).status
    assert summarize(job, far, stated, ()).progress == (f"step 7, {text}" if text else "step 7")


def test_a_job_that_was_not_measured_has_no_progress() -> None:
    found = make_job()
    assert summarize(found, found.status, found.status, ()).progress == ""


@pytest.mark.parametrize(
    ("phase", "total", "text"),
    [
        (JobPhase.RUNNING, 100, "3m"),
        (JobPhase.RUNNING, 10, "0s"),
        (JobPhase.RUNNING, None, ""),
        (JobPhase.STOPPING, 100, ""),
        (JobPhase.SUCCEEDED, 100, ""),
    ],
)
def test_the_remaining_time_is_that_of_a_running_job(
    phase: JobPhase, total: int | None, text: str
) -> None:
    current = Timing(step_seconds=2.0, peak_memory_bytes=1)
    seen = replace(measured(GIB, step=10), steps_total=total, current=current)
    found = with_status(running(make_job()), phase=phase, measurement=seen)
    assert summarize(found, found.status, found.status, ()).eta == text


@pytest.mark.parametrize(
    ("source", "text"),
    [(ReservationSource.MEASURED, "1 GiB of 2 GiB"), (ReservationSource.PARKED, "parked, 2 GiB")],
)
def test_the_memory_of_a_parked_replica_is_not_compared_with_its_peak(
    source: ReservationSource, text: str
) -> None:
    held = Reservation(2 * GIB, 0.0, source)
    found = with_status(running(make_job()), measurement=measured(GIB, step=1), reservation=held)
    assert summarize(found, found.status, found.status, ()).memory == text
