from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Checkpoint, GPUJob
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport, Protection
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.measurement import runtime
from gpujob_operator.decide.measurement.runtime import (
    Run,
    RunHistory,
    remaining_of,
    remaining_seconds,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.queue.pending import order_entry
from tests.harness.builders import T0, make_job, measured, running, with_status


def test_units_left_times_measured_pace() -> None:
    assert remaining_seconds(30, 100, 0.5) == 35
    assert remaining_seconds(120, 100, 0.5) == 0


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_no_estimate_without_a_pace(pace: float) -> None:
    assert remaining_seconds(0, 100, pace) is None
    assert remaining_seconds(0, None, 1.0) is None


def test_the_median_of_the_newest_runs_whatever_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "RUNS_MAX", 3)
    history = RunHistory()
    assert history.expected_seconds("a", 8) is None
    runs = [Run(at, f"uid-{at}", 80 * at) for at in (1.0, 2.0, 3.0, 10.0)]
    for run in reversed(runs):
        history.add("a", run)
    assert history.expected_seconds("a", 8) == 30
    assert history.expected_seconds("a", 4) == 60
    assert history.expected_seconds("b", 8) is None
    history.remove("a", runs[-1])
    assert history.expected_seconds("a", 8) == 20


def test_a_history_of_which_all_was_taken_out_is_empty() -> None:
    history = RunHistory()
    run = Run(1.0, "uid", 5.0)
    history.add("a", run)
    history.remove("a", run)
    assert history == RunHistory()


# -- what is left of a job whose earlier attempt is over


def half_done(job: GPUJob, **status: Any) -> GPUJob:
    """600 of 1,000 steps of 0.1 s are measured."""
    known = replace(measured(GIB, step=600), steps_total=1_000)
    return with_status(job, measurement=known, **status)


def left(job: GPUJob) -> float | None:
    return remaining_of(job, Configuration())


def test_of_a_running_attempt_the_steps_that_it_did_not_make_are_left() -> None:
    assert left(half_done(running(make_job(claim=None)))) == pytest.approx(40)
    resumed = running(make_job(), attempt=2)
    assert left(half_done(resumed, resumed_from_step=500)) == pytest.approx(40)


@pytest.mark.parametrize("saved", [None, CheckpointReport(500)])
def test_between_attempts_all_of_an_unprotected_run_is_left(saved: CheckpointReport | None) -> None:
    job = make_job(claim=None)
    assert left(half_done(job, attempt=1, checkpoint=saved)) == pytest.approx(100)
    not_heard_of = half_done(running(job, attempt=2), checkpoint=saved)
    assert left(not_heard_of) == pytest.approx(100), "the steps are those of attempt 1"
    unexact = half_done(make_job(), attempt=1, protection=Protection.FROM_BEGINNING)
    assert left(unexact) == pytest.approx(100)


def test_between_attempts_what_follows_the_checkpoint_is_left() -> None:
    job = half_done(make_job(), attempt=1)
    assert left(job) == pytest.approx(100), "it saved nothing"
    assert left(with_status(job, checkpoint=CheckpointReport(500))) == pytest.approx(50)


def test_a_script_with_checkpoints_of_its_own_is_taken_for_what_it_reached() -> None:
    job = make_job()
    own = replace(job, spec=replace(job.spec, checkpoint=Checkpoint("checkpoints", path="last.pt")))
    assert left(half_done(own, attempt=1)) == pytest.approx(40)


def test_runs_that_begin_anew_are_known_to_the_order_and_to_who_waits_for_their_gpus() -> None:
    job = half_done(make_job(claim=None), attempt=1)
    assert order_entry(job, T0, Configuration()).remaining_seconds == pytest.approx(100)
    again = half_done(running(make_job(claim=None), attempt=2), observed_at=T0)
    assert ReleaseTimes.of([again], T0).seconds(again.metadata.uid) == pytest.approx(100)
