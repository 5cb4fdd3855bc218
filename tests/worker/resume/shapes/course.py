"""One script: a plain run, and a run that is stopped and resumed; what became of the promise.

Some of the stops are kills, once there is a checkpoint to come back to.
"""

import random
import signal
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tests.worker.resume.shapes.generator import Shape
from tests.worker.resume.shapes.oracle import (
    differing_files,
    differing_results,
    other_lines,
)
from tests.worker.resume.shapes.runs import Request, Run, Runner
from tests.worker.resume.shapes.stop_at_step import MARK

EXACT, FROM_BEGINNING = "Exact", "FromBeginning"
SAVED, UNSAVED, KILLED = 143, 144, -signal.SIGKILL
_REFUSES = "resume skipped: plain script"
_NOT_WRITTEN = "checkpoint not written:"
_STOPS_MAX = 3
_KILLS_SHARE = 0.3
# Attempts after the last stop: one that cannot go on begins anew in the next one.
_UNDISTURBED_MAX = 3


class Verdict(Enum):
    """What the worker had promised, and whether it was kept."""

    EXACT = "Exact"
    FROM_BEGINNING = "FromBeginning"
    # Ended otherwise than the plain run: what must never be.
    DIFFERENT = "Different"
    # Begun anew although it was `Exact`, or known for `FromBeginning` only after a stop.
    LATE = "Late"
    # An error, another exit code, no end, or nothing known at the end.
    BROKEN = "Broken"
    # The script fails without the worker, or does not do the same twice.
    INVALID = "Invalid"

    @property
    def is_failure(self) -> bool:
        return self not in (Verdict.EXACT, Verdict.FROM_BEGINNING)


@dataclass
class Course:
    shape: Shape
    folder: Path
    verdict: Verdict = Verdict.EXACT
    reason: str = ""
    details: list[str] = field(default_factory=list[str])
    stops: list[int] = field(default_factory=list[int])
    kills: int = 0
    # Attempts that began where one had stopped.
    resumed: int = 0
    # Lines that the undisturbed run did not print: before the results, and no failure.
    other_lines: int = 0
    seconds: float = 0.0

    def ends(self, verdict: Verdict, reason: str, details: list[str] | None = None) -> "Course":
        self.verdict, self.reason, self.details = verdict, reason, details or []
        return self


def play(shape: Shape, folder: Path, runner: Runner) -> Course:
    """The script and everything that its runs leave is in `folder`, which is empty."""
    course = Course(shape, folder)
    script = folder / "train.py"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(shape.source)
    plain = runner.run(Request(script, folder / "plain", folder / "results", "plain"))
    if plain.code != 0 or not plain.steps:
        return course.ends(Verdict.INVALID, f"plain run: exit {plain.code}", _tail(plain))
    runs = _attempts(course, plain.steps, runner)
    course.seconds = plain.seconds + sum(run.seconds for run in runs)
    course.other_lines = len(other_lines(plain.output, runs[-1].output))
    course.resumed = sum(run.report.get("resumedFromStep") is not None for run in runs)
    return _judged(course, plain, runs)


def _attempts(course: Course, steps: int, runner: Runner) -> list[Run]:
    """Stops at random; what is left of the run shrinks only where it was saved."""
    draw = random.Random(f"stops {course.shape.seed}")
    folder, count = course.folder, draw.randint(1, _STOPS_MAX)
    is_saved = False
    runs: list[Run] = []
    for attempt in range(1, count + _UNDISTURBED_MAX + 1):
        stop_at = draw.randint(1, max(1, steps)) if attempt <= count else 0
        course.stops.append(stop_at)
        request = Request(
            folder / "train.py", folder / "worker", folder / "results", f"attempt-{attempt}",
            attempt, folder / "checkpoints", stop_at, draw.choice(("after", "after", "before")),
            signal.SIGKILL if is_saved and draw.random() < _KILLS_SHARE else signal.SIGTERM,
        )  # fmt: skip
        run = runner.run(request)
        runs.append(run)
        course.kills += run.code == KILLED
        if run.code not in (SAVED, UNSAVED, KILLED):
            break
        is_saved = is_saved or run.code == SAVED
        steps -= stop_at if run.code == SAVED else 0
    return runs


def _judged(course: Course, plain: Run, runs: list[Run]) -> Course:
    codes = [run.code for run in runs]
    if codes[-1] != 0 or not {*codes[:-1]} <= {SAVED, UNSAVED, KILLED}:
        return course.ends(Verdict.BROKEN, f"exit codes {codes}", _tail(runs[-1]))
    begun_anew = 0
    while _is_over_before_it_is_known(runs[begun_anew], course.stops[begun_anew]):
        begun_anew += 1
    runs, codes = runs[begun_anew:], codes[begun_anew:]
    promise, why = promise_of(runs[0])
    if promise == FROM_BEGINNING:
        return _judged_from_beginning(course, plain, runs, why)
    if promise != EXACT:
        return course.ends(Verdict.BROKEN, f"nothing is known of the resume: exit codes {codes}")
    if UNSAVED in codes:
        at = codes.index(UNSAVED)
        _, why = promise_of(runs[at])
        return _judged_late(
            course, plain, runs[-1], _refused(runs[at]) or why or "exit 144", _tail(runs[at])
        )
    leave_out = _changed_by_beginning_anew(course.shape) if begun_anew else frozenset()
    found = _differences(course, plain, runs[-1], leave_out)
    if found:
        return course.ends(Verdict.DIFFERENT, _kind_of(found), found)
    return course.ends(Verdict.EXACT, "")


def _is_over_before_it_is_known(run: Run, stop: int) -> bool:
    """Stopped in its first step: before that is made nothing is known, and nothing is lost."""
    return run.code == UNSAVED and stop == 1 and promise_of(run)[0] is None


def _changed_by_beginning_anew(shape: Shape) -> frozenset[str]:
    """Files that a second run from the beginning adds to, by what the script does."""
    return shape.appends


def _judged_from_beginning(course: Course, plain: Run, runs: list[Run], why: str) -> Course:
    first = runs[0]
    if first.code == UNSAVED and not _is_known_before_stop(first):
        reason = f"known only after the stop: {why}"
        return _judged_late(course, plain, runs[-1], reason, _tail(first))
    found = _differences_of_anew(course, plain, runs[-1])
    if found:
        return course.ends(Verdict.DIFFERENT, f"from the beginning: {_kind_of(found)}", found)
    return course.ends(Verdict.FROM_BEGINNING, why)


def _judged_late(course: Course, plain: Run, last: Run, reason: str, details: list[str]) -> Course:
    """Begun anew or from an older checkpoint, and said; it ends as the plain run all the same."""
    found = _differences_of_anew(course, plain, last)
    if found:
        return course.ends(Verdict.DIFFERENT, f"late, {reason}: {_kind_of(found)}", found)
    return course.ends(Verdict.LATE, reason, details)


def _differences_of_anew(course: Course, plain: Run, last: Run) -> list[str]:
    """A script that goes on from a checkpoint of its own does so by its own rules."""
    shape = course.shape
    if len(course.stops) > 1 and shape.resumes_itself:
        return []
    return _differences(course, plain, last, _changed_by_beginning_anew(shape))


def _is_known_before_stop(run: Run) -> bool:
    """Also where the stop came in the first step, before which nothing can be known."""
    before, mark, _ = run.errors.partition(MARK)
    return _REFUSES in before or f"{mark} at step 1\n" in run.errors


def promise_of(run: Run) -> tuple[str | None, str]:
    """What the worker said of a resume, by its report; by its explanations where that is silent."""
    report: dict[str, Any] = run.report
    promise, why = report.get("protection"), report.get("protectionReason") or ""
    refusals = [line for line in run.errors.splitlines() if _REFUSES in line]
    if promise is None and refusals:
        promise = FROM_BEGINNING
    if not why and refusals:
        why = refusals[-1].partition(f"{_REFUSES}:")[2].strip()
    return promise, why


def _refused(run: Run) -> str:
    """Why an attempt did not come back, or was not saved."""
    reason = (run.report.get("resumeRefused") or {}).get("reason", "")
    return reason or run.errors.partition(_NOT_WRITTEN)[2].partition("\n")[0].strip()


def _differences(
    course: Course, plain: Run, last: Run, leave_out: frozenset[str] = frozenset()
) -> list[str]:
    folder = course.folder
    found = differing_results(plain.output, last.output)
    return found + differing_files(folder / "plain", folder / "worker", leave_out)


def _kind_of(found: list[str]) -> str:
    """The names of what differs."""
    names = [line.removeprefix("- ").split()[0] for line in found]
    return ", ".join(sorted(set(names))[:6])


def _tail(run: Run) -> list[str]:
    return [*run.output.splitlines()[-3:], *run.errors.splitlines()[-8:]]
