"""Reports: within 4,096 bytes as a termination message, and untouched by noise."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.bounds import FRACTION_MAX, INTEGER_MAX
from gpujob_api.codec import FieldError
from gpujob_api.report import (
    TERMINATION_MESSAGE_BYTES_MAX,
    Efficiency,
    Failure,
    FailureClass,
    MemoryPeaks,
    Protection,
    Reply,
    Report,
    ResumeRefused,
    StopRequest,
    Timing,
    WorkerPhase,
)
from gpujob_api.settings import AttentionKernel, Precision, TunedSettings
from tests.harness.nouns import nouns


def _report(message: str = "", explain: tuple[str, ...] = (), **fields: Any) -> Report:
    failure = Failure(FailureClass.OUT_OF_MEMORY, message) if message else None
    return Report(1, WorkerPhase.FINISHED, failure=failure, explain=explain, **fields)


def test_a_short_report_is_the_termination_message_as_it_is() -> None:
    report = _report("CUDA out of memory", explain=("bfloat16 is 1.8 times faster",))
    assert Report.from_text(report.termination_message()) == report


def test_explanations_go_before_the_failure_is_cut() -> None:
    report = _report("x" * 900, explain=("y" * 500,) * 20)
    read = Report.from_text(report.termination_message())
    assert read.explain == ()
    assert read.failure == report.failure


def test_without_a_failure_only_the_explanations_go() -> None:
    report = _report(explain=("y" * 500,) * 20, step=7)
    assert Report.from_text(report.termination_message()) == _report(step=7)


@pytest.mark.parametrize("character", ["x", "\u00e9", "\u8eca", "\U0001f697", "\x00", '"'])
def test_the_termination_message_fits_whatever_the_alphabet(character: str) -> None:
    timing = Timing(999999.123456789, 2**44, 999999999999.123)
    tuned = TunedSettings(
        Precision.BFLOAT16, 2**31 - 1, True, True, 1024, attention=AttentionKernel.EFFICIENT
    )
    report = _report(
        character * 5000,
        explain=(character * 500,) * 64,
        step=2**53 - 1,
        steps_total=2**53 - 1,
        loss=-1.2345678901234567e17,
        baseline=timing,
        current=timing,
        peaks=MemoryPeaks(2**44, 2**44),
        efficiency=Efficiency(1.23456789e20, 1.23456789e15, 1.23456789e15, 99.123456, 123456.789),
        tuned=tuned,
        tuning_seconds=1234567.123456789,
        protection=Protection.FROM_BEGINNING,
        protection_reason=character * 512,
        resume_refused=ResumeRefused(2**53 - 1, character * 1024),
        device=character * 128,
        torch_version=character * 64,
    )
    text = report.termination_message()
    assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES_MAX
    read = Report.from_text(text)
    assert read.current == timing
    assert read.failure is not None
    assert read.failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert read.protection is Protection.FROM_BEGINNING
    assert read.resume_refused is not None
    assert read.resume_refused.step == 2**53 - 1


@settings(max_examples=50)
@given(nouns(Report), st.text(max_size=6000))
def test_every_report_fits(report: Report, message: str) -> None:
    failure = Failure(FailureClass.DATA, message)
    wordy = Report(report.attempt, report.phase, failure=failure, explain=(message,) * 70)
    refused = replace(wordy, protection_reason=message, resume_refused=ResumeRefused(7, message))
    for one in (report, wordy, refused):
        text = one.termination_message()
        assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES_MAX
        assert Report.from_text(text).attempt == report.attempt


def test_an_unknown_protection_is_left_out() -> None:
    assert not {"protection", "protectionReason", "resumeRefused"} & set(
        json.loads(_report(step=7).to_text())
    )


def test_what_a_resume_was_refused_for_survives() -> None:
    report = _report(
        protection=Protection.FROM_BEGINNING,
        protection_reason="a generator of its own draws the batches",
        resume_refused=ResumeRefused(190, "step 191 differs: loss 2.25 instead of 1.5"),
    )
    data = json.loads(report.to_text())
    assert data["protection"] == "FromBeginning"
    assert data["resumeRefused"]["step"] == 190
    assert Report.from_text(report.termination_message()) == report


@pytest.mark.parametrize(
    ("loss", "sent"),
    [(float("inf"), FRACTION_MAX), (1e30, FRACTION_MAX), (-1e30, -FRACTION_MAX), (2.5, 2.5)],
)
def test_a_diverging_loss_does_not_cost_the_report(loss: float, sent: float) -> None:
    assert Report.from_text(_report(loss=loss).to_text()).loss == sent


def test_an_absurd_need_of_memory_does_not_cost_the_failure() -> None:
    """What torch says of `torch.empty(2**60)` after a broken size calculation."""
    failure = Failure(FailureClass.OUT_OF_MEMORY, "you tried to allocate", 2**60)
    report = Report(1, WorkerPhase.STARTING, failure=failure)
    read = Report.from_text(report.termination_message()).failure
    assert read == Failure(FailureClass.OUT_OF_MEMORY, "you tried to allocate", INTEGER_MAX)


def test_a_loss_that_is_no_number_is_left_out() -> None:
    assert "loss" not in json.loads(_report(loss=float("nan")).to_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", -1), ("attempt", -1), ("step", 2**60), ("tuningSeconds", -0.5), ("rank", 2**40)],
)
def test_absurd_figures_are_refused(field: str, value: float) -> None:
    data = {"attempt": 1, "phase": "training"} | {field: value}
    with pytest.raises(FieldError, match=rf"^report\.{field}: must be from"):
        Report.from_text(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises((FieldError, json.JSONDecodeError)):
        Report.from_text(text)


def test_replies_ignore_what_they_do_not_know() -> None:
    assert Reply.from_text('{"yield": true}') == Reply()
    stop = Reply(stop=StopRequest("SpotReclaim", 25.5))
    assert Reply.from_text(stop.to_text()) == stop
