"""What is made of attempts, with a runner that plays them by a list."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.resume.shapes.course import Course, Verdict, play
from tests.worker.resume.shapes.generator import Shape, generate
from tests.worker.resume.shapes.runs import Request, Run
from tests.worker.resume.shapes.tally import Tally
from tests.worker.resume.shapes.workshop import failure

END = "== end\nstep 40\n"
REFUSES = "gpujob: resume skipped: plain script: its loop cannot be read\n"
STOPS = "== stopped at step 7\n"
REASON = "its loop cannot be read"


class Played:
    """Plays the attempts in order, and after them the last one again; each appends to a log."""

    def __init__(self, *attempts: Run, plain: Run | None = None, log: str = "") -> None:
        self._plain = plain or Run(0, END, "", 0.1, 40)
        self._attempts, self._log = attempts, log
        self.requests: list[Request] = []

    def run(self, request: Request) -> Run:
        request.folder.mkdir(exist_ok=True)
        if request.attempt is None:
            return self._plain
        self.requests.append(request)
        if self._log:
            with open(request.folder / self._log, "a") as file:
                file.write("1\n")
        return self._attempts[min(request.attempt, len(self._attempts)) - 1]


def attempt(code: int, output: str = "", errors: str = STOPS, **report: Any) -> Run:
    return Run(code, output, errors, 0.1, None, report)


def exact(code: int, output: str = "", **more: Any) -> Run:
    return attempt(code, output, protection="Exact", **more)


def refused(code: int, output: str = "", errors: str = REFUSES + STOPS) -> Run:
    return attempt(code, output, errors, protection="FromBeginning", protectionReason=REASON)


def played(tmp_path: Path, runner: Played, shape: Shape | None = None) -> Course:
    return play(shape or shape_with_stops(), tmp_path, runner)


def shape_with_stops() -> Shape:
    """A seed whose first stop is not in the first step."""
    return next(shapes_without_files())


def shapes_without_files() -> Iterator[Shape]:
    for seed in range(3, 100):
        shape = generate(seed)
        if not shape.appends and not shape.resumes_itself:
            yield shape


@pytest.mark.parametrize(
    ("attempts", "verdict"),
    [
        ([exact(143), exact(0, END)], Verdict.EXACT),
        ([exact(0, END)], Verdict.EXACT),
        ([exact(143), exact(0, END.replace("40", "41"))], Verdict.DIFFERENT),
        ([exact(143), exact(0, "no end")], Verdict.DIFFERENT),
        ([exact(143), exact(144), exact(0, END)], Verdict.LATE),
        ([exact(144), exact(0, END)], Verdict.LATE),
        ([exact(143), exact(1)], Verdict.BROKEN),
        ([exact(143), Run(None, "", "", 60.0)], Verdict.BROKEN),
        ([exact(143), exact(143)], Verdict.BROKEN),
        ([exact(143), attempt(-9), exact(0, END)], Verdict.EXACT),
        ([exact(143), attempt(-9), exact(0, "no end")], Verdict.DIFFERENT),
        ([exact(143), attempt(-11), exact(0, END)], Verdict.BROKEN),
        ([exact(143), exact(144), exact(0, "no end")], Verdict.DIFFERENT),
        ([attempt(144), attempt(0, END)], Verdict.BROKEN),
        ([refused(144), refused(0, END)], Verdict.FROM_BEGINNING),
        ([refused(144), refused(0, END.replace("40", "41"))], Verdict.DIFFERENT),
        ([refused(144, "", STOPS + REFUSES), refused(0, END)], Verdict.LATE),
    ],
)
def test_what_became_of_the_promise(tmp_path: Path, attempts: list[Run], verdict: Verdict) -> None:
    course = played(tmp_path, Played(*attempts))
    assert course.verdict is verdict, course
    assert verdict.is_failure == (verdict not in (Verdict.EXACT, Verdict.FROM_BEGINNING))


def test_the_reason_of_a_refusal_is_kept(tmp_path: Path) -> None:
    course = played(tmp_path, Played(refused(144), refused(0, END)))
    assert course.reason == REASON
    silent = attempt(144, "", REFUSES + STOPS), attempt(0, END, REFUSES)
    course = played(tmp_path, Played(*silent))
    assert (course.verdict, course.reason) == (Verdict.FROM_BEGINNING, REASON)


def test_why_an_attempt_was_late_is_kept(tmp_path: Path) -> None:
    refusal = exact(144, resumeRefused={"step": 4, "reason": "another loss"})
    course = played(tmp_path, Played(exact(143), refusal, exact(0, END)))
    assert (course.verdict, course.reason) == (Verdict.LATE, "another loss")
    silent = attempt(144, "", "gpujob: checkpoint not written: too large\n", protection="Exact")
    course = played(tmp_path, Played(silent, exact(0, END)))
    assert (course.verdict, course.reason) == (Verdict.LATE, "too large")


def test_a_script_that_fails_by_itself_is_no_failure_of_the_worker(tmp_path: Path) -> None:
    runner = Played(exact(0, END), plain=Run(1, "", "NameError: x", 0.1, 3))
    course = played(tmp_path, runner)
    assert course.verdict is Verdict.INVALID
    assert runner.requests == []
    assert "NameError: x" in failure(course)


def test_a_file_that_is_there_too_is_a_difference(tmp_path: Path) -> None:
    runner = Played(exact(143), exact(0, END), log="log.csv")
    course = played(tmp_path, runner)
    assert course.verdict is Verdict.DIFFERENT
    assert course.reason == "log.csv"


def test_stops_are_counted_from_where_a_run_was_saved(tmp_path: Path) -> None:
    """They are drawn from what is left; an attempt that was not saved leaves everything."""
    for number, shape in zip(range(12), shapes_without_files(), strict=False):
        runner = Played(exact(143), exact(0, END))
        course = play(shape, tmp_path / str(number), runner)
        first, last = runner.requests[0], runner.requests[-1]
        assert 1 <= first.stop_at <= 40
        assert first.stop_at + last.stop_at <= 41
        assert course.stops == [each.stop_at for each in runner.requests]
        assert [each.attempt for each in runner.requests] == [1, 2]


def test_some_stops_are_kills_once_there_is_a_checkpoint(tmp_path: Path) -> None:
    signals: list[int] = []
    for number, shape in zip(range(40), shapes_without_files(), strict=False):
        runner = Played(exact(143), exact(143), exact(143), exact(0, END))
        play(shape, tmp_path / str(number), runner)
        assert runner.requests[0].stop_signal == signal.SIGTERM
        signals += [each.stop_signal for each in runner.requests[1:] if each.stop_at]
    assert 0.1 < signals.count(signal.SIGKILL) / len(signals) < 0.5


def test_a_stop_in_the_first_step_comes_before_anything_is_known(tmp_path: Path) -> None:
    """The plain run has one step, so that each stop is in it."""
    plain = Run(0, END, "", 0.1, 1)
    runner = Played(attempt(144), exact(0, END), plain=plain)
    assert played(tmp_path, runner).verdict is Verdict.EXACT
    runner = Played(attempt(144), exact(0, "== end\n"), plain=plain)
    assert played(tmp_path / "other", runner).verdict is Verdict.DIFFERENT


def test_a_tally_counts_by_parts_and_reasons(tmp_path: Path) -> None:
    tally = Tally()
    tally.add(played(tmp_path / "1", Played(exact(143), exact(0, END))))
    tally.add(played(tmp_path / "2", Played(refused(144), refused(0, END))))
    tally.add(played(tmp_path / "3", Played(exact(143), exact(0, "no end"))))
    numbers = tally.numbers()
    assert (numbers["scripts"], numbers["failures"]) == (3, 1)
    assert (numbers["Exact"], numbers["FromBeginning"], numbers["Different"]) == (1, 1, 1)
    assert numbers["reasons"]["FromBeginning"] == {REASON: 1}
    assert numbers["failed_seeds"] == [shape_with_stops().seed]
    assert "torch" in numbers["machine"]
    style = f"style: {shape_with_stops().labels['style']}"
    assert tally.parts[style] == {"Exact": 1, "FromBeginning": 1, "Different": 1}
    assert style in tally.text()
