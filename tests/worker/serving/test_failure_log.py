"""The log has the line of the script at fault, and does not grow with the requests."""

import pytest

from gpujob_worker.serving.metered import CHARACTERS_MAX, EVERY_SECONDS, FRAMES_MAX, FailureLog
from tests.worker.serving.test_metered import Clock


def the_models_line(depth: int = 0, message: str = "a poisoned sample") -> None:
    if depth:
        the_models_line(depth - 1, message)
    raise ValueError(message)


def raised(depth: int = 0, message: str = "a poisoned sample") -> ValueError:
    try:
        the_models_line(depth, message)
    except ValueError as error:
        return error
    raise AssertionError


def test_the_traceback_has_the_line_at_fault(capsys: pytest.CaptureFixture[str]) -> None:
    FailureLog(Clock()).failed(raised())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "gpujob: a batch failed (one traceback in 60 s)"
    assert any("in the_models_line" in line for line in lines)
    assert lines[-1] == "ValueError: a poisoned sample"


def test_one_traceback_a_minute_with_the_number_of_those_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    log = FailureLog(clock)
    for _ in range(100):
        log.failed(raised())
    clock.seconds += EVERY_SECONDS - 1
    log.failed(raised())
    assert capsys.readouterr().err.count("Traceback") == 1
    clock.seconds += 1
    log.failed(raised())
    text = capsys.readouterr().err
    assert text.startswith("gpujob: a batch failed (one traceback in 60 s); 100 more failed")
    clock.seconds += EVERY_SECONDS
    log.failed(raised())
    assert "more failed" not in capsys.readouterr().err


def test_a_deep_traceback_and_a_long_message_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    FailureLog(Clock()).failed(raised(depth=2 * FRAMES_MAX))
    assert capsys.readouterr().err.count("in the_models_line") <= FRAMES_MAX
    FailureLog(Clock()).failed(raised(message="x" * 2 * CHARACTERS_MAX))
    assert CHARACTERS_MAX < len(capsys.readouterr().err) < CHARACTERS_MAX + 100
