"""What the loss of the first step after a resume says about the run."""

from pathlib import Path

import pytest

from gpujob_worker.resume.first_loss import FILE, FirstLoss
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


def compared(folder: Path, before: float | None, after: float | None, step: int = 3) -> str:
    """What a run says whose first loss is `after`; the one that stopped had `before`."""
    stopped = Session(Environment())
    first = FirstLoss(stopped, folder)
    first.record_after(3)
    stopped.state.saw_loss(before)
    first.passes()
    session = Session(Environment())
    resumed = FirstLoss(session, folder)
    resumed.compare_after(step)
    session.state.saw_loss(after)
    resumed.passes()
    line = session.explanation.line("resume check")
    session.state.saw_loss(100.0)
    resumed.passes()
    assert session.explanation.line("resume check") == line, "of the first step alone"
    return line


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.5, 0.5, "the first loss is 0.5, the same"),
        (0.5, 0.5004, "the first loss is 0.5004, 0.5 before the stop"),
        (0.5, 0.501, "the first loss is 0.501 and would have been 0.5: this run is not"),
        (0.5, float("nan"), "the first loss is not known or not finite, and would have been 0.5"),
        (-2.0, 2.0, "the first loss is 2 and would have been -2: this run is not"),
        (None, 0.5, "the first loss before the stop is not known"),
        (0.5, None, "the first loss is not known or not finite, and would have been 0.5"),
        (None, None, "the first loss before the stop is not known"),
    ],
)
def test_the_first_loss_is_compared_with_that_of_the_run_that_stopped(
    before: float | None, after: float | None, text: str, tmp_path: Path
) -> None:
    assert text in compared(tmp_path, before, after)


def test_a_loss_of_another_step_says_nothing(tmp_path: Path) -> None:
    assert "not known" in compared(tmp_path, 0.5, 0.5, step=4)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"step": 3, "loss": "high"}'])
def test_a_file_that_cannot_be_read_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    session = Session(Environment())
    resumed = FirstLoss(session, tmp_path)
    resumed.compare_after(3)
    session.state.saw_loss(0.5)
    resumed.passes()
    assert "not known" in session.explanation.line("resume check")
