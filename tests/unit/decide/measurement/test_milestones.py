"""What the events of a running attempt say, and that none says again what an earlier one said."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJobStatus
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import CheckpointReport, Speedup, WorkerPhase
from gpujob_api.settings import OptimizeMode, Precision, TunedSettings
from gpujob_api.summary import Summary
from gpujob_operator.decide.measurement.milestones import milestones
from gpujob_operator.decide.measurement.profile import attempt_mode, profile_name
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import ReceivedReport
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    make_job,
    make_pods,
    make_report,
    make_snapshot,
    measured,
    running,
    with_status,
)

TUNED = TunedSettings(precision=Precision.BFLOAT16, fused_optimizer=True)
START = GPUJobStatus(attempt=2)


def said(before: GPUJobStatus, after: GPUJobStatus, **report: Any) -> list[tuple[str, str]]:
    notes = milestones(before, after, make_report(attempt=2, **report))
    return [(note.reason, note.message) for note in notes]


def test_what_was_tuned_and_what_it_gave() -> None:
    tuned = replace(START, tuned=TUNED)
    gain = Speedup(1.4142, 1.31, 1.52, 20)
    text = (
        "runs with bfloat16, fused optimizer: a step is 1.41 times as fast "
        "(95 % 1.31 to 1.52, 20 pairs)"
    )
    assert said(START, tuned, tuned=TUNED, speedup=gain) == [("Tuned", text)]
    assert said(tuned, tuned, tuned=TUNED, speedup=gain) == []
    # Settings of an earlier run, of which this one has measured nothing.
    assert said(START, tuned, tuned=TUNED) == [("Tuned", "runs with bfloat16, fused optimizer")]


def test_that_training_stands_still_is_said_once() -> None:
    tries: dict[str, Any] = {"phase": WorkerPhase.TUNING}
    ((reason, text),) = said(START, START, **tries)
    assert reason == "Tuning"
    assert text.startswith("attempt 2 tries settings; training stands still meanwhile")
    assert said(START, START, step=0, **tries) == [], "before the first step nothing stands still"
    assert said(replace(START, summary=Summary(progress="step 10, tuning")), START, **tries) == []
    assert said(replace(START, tuning_seconds=3.0), START, **tries) == [], "between two trials"
    assert said(START, replace(START, attempt=3), **tries) == [], "of an earlier attempt"


def test_a_script_that_runs_as_written_is_no_news_unless_it_did_not() -> None:
    plain = replace(START, tuned=TunedSettings())
    assert said(START, plain, tuned=TunedSettings()) == []
    back = "the settings are taken back; the script runs as written"
    assert said(replace(START, tuned=TUNED), plain, tuned=TunedSettings()) == [("Tuned", back)]


def test_the_first_checkpoint_of_an_attempt_is_said_and_no_other() -> None:
    first = replace(START, checkpoint=CheckpointReport(50, 3 * MIB, 0.0293))
    text = "attempt 2 saved its first checkpoint at step 50, 3 MiB in 29.3 ms"
    assert said(START, first) == [("CheckpointCommitted", text)]
    assert said(first, replace(first, checkpoint=CheckpointReport(60))) == []


def test_a_resumed_attempt_says_from_where_and_then_its_own_first_checkpoint() -> None:
    kept = replace(START, checkpoint=CheckpointReport(50))
    resumed = replace(kept, resumed_from_step=50)
    assert said(kept, resumed) == [("Resumed", "attempt 2 resumes after step 50")]
    saved = replace(resumed, checkpoint=CheckpointReport(60))
    text = "attempt 2 saved its first checkpoint at step 60"
    assert said(resumed, saved) == [("CheckpointCommitted", text)]
    assert said(saved, replace(saved, checkpoint=CheckpointReport(70))) == []


def recommended(before: GPUJobStatus, after: GPUJobStatus) -> list[tuple[str, str]]:
    report = make_report(attempt=2, tuned=after.tuned)
    notes = milestones(before, after, report, OptimizeMode.RECOMMEND)
    return [(note.reason, note.message) for note in notes]


def test_what_is_recommended_is_not_said_to_be_in_force() -> None:
    found, plain = replace(START, tuned=TUNED), replace(START, tuned=TunedSettings())
    text = (
        "would run with bfloat16, fused optimizer; "
        "optimize.mode: Auto applies it from the next attempt on"
    )
    assert recommended(START, found) == [("Recommends", text)]
    assert recommended(found, found) == []
    assert recommended(START, plain) == []
    assert recommended(found, plain) == [("Recommends", "no settings are recommended any more")]


@pytest.mark.parametrize("started_in", OptimizeMode)
@pytest.mark.parametrize("edited_to", OptimizeMode)
def test_an_edit_of_the_mode_says_nothing_of_the_attempt_that_runs(
    started_in: OptimizeMode, edited_to: OptimizeMode
) -> None:
    job = make_job(optimize=Optimize(mode=started_in))
    job = with_status(running(job), profile=profile_name(job), measurement=measured(GIB))
    edited = replace(job, spec=replace(job.spec, optimize=Optimize(mode=edited_to)))
    assert attempt_mode(edited) is started_in
    over = with_status(edited, placement=None)
    assert attempt_mode(over) is edited_to
    received = ReceivedReport(job.metadata.uid, 0, T0, make_report(step=5, tuned=TUNED))
    seen = make_snapshot(edited, pods=make_pods(edited), reports=(received,))
    said = {
        note.reason
        for item in plan(seen, T0).items
        if isinstance(item, WriteStatus)
        for note in item.events
    }
    expected = "Tuned" if started_in is OptimizeMode.AUTO else "Recommends"
    assert said & {"Tuned", "Recommends"} == {expected}
