"""What the events of a running attempt say, and that none says again what an earlier one said."""

from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJobStatus
from gpujob_api.quantities import MIB
from gpujob_api.report import CheckpointReport, Speedup
from gpujob_api.settings import Precision, TunedSettings
from gpujob_operator.decide.measurement.milestones import milestones
from tests.harness.builders import make_report

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


def test_a_script_that_runs_as_written_is_no_news_unless_it_did_not() -> None:
    plain = replace(START, tuned=TunedSettings())
    assert said(START, plain, tuned=TunedSettings()) == []
    back = "the settings are taken back; the script runs as written"
    assert said(replace(START, tuned=TUNED), plain, tuned=TunedSettings()) == [("Tuned", back)]


def test_the_first_checkpoint_of_an_attempt_is_said_and_no_other() -> None:
    first = replace(START, checkpoint=CheckpointReport(50, 3 * MIB, 1.25))
    text = "attempt 2 saved its first checkpoint at step 50, 3 MiB in 1.2 s"
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
