"""Runs of a zygote's children are those of processes, and some composed scripts are played."""

from pathlib import Path

import pytest

from tests.worker.resume.shapes import runs
from tests.worker.resume.shapes.course import Verdict, play
from tests.worker.resume.shapes.generator import generate
from tests.worker.resume.shapes.runs import RealProcesses, Request, Run, Zygote
from tests.worker.resume.shapes.workshop import failure

STEPS = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for n in range(6):
    (weight * n).sum().backward()
    optimizer.step()
    print("step", n, flush=True)
left_open = open("open.txt", "w")
left_open.write("written")
print("modules", [name for name in sys.modules if name.startswith("tests")])
raise SystemExit(5)
"""


def run_of(zygote: Zygote, tmp_path: Path, source: str, stop_at: int = 0, when: str = "") -> Run:
    script = tmp_path / "train.py"
    script.write_text(source)
    request = Request(
        script, tmp_path / "folder", tmp_path / "results", "one", stop_at=stop_at, stop_when=when
    )
    return zygote.run(request)


def test_a_child_ends_as_a_process_does(zygote: Zygote, tmp_path: Path) -> None:
    run = run_of(zygote, tmp_path, STEPS)
    assert (run.code, run.steps) == (5, 6), run.errors
    assert run.output.splitlines()[-1] == "modules []"
    assert (tmp_path / "folder" / "open.txt").read_text() == "written"


@pytest.mark.parametrize(("when", "steps"), [("after", 2), ("before", 2)])
def test_it_is_stopped_at_a_step(zygote: Zygote, tmp_path: Path, when: str, steps: int) -> None:
    run = run_of(zygote, tmp_path, STEPS, 3, when)
    assert run.code == -15
    assert run.output.splitlines() == [f"step {n}" for n in range(steps)]
    assert run.errors == "== stopped at step 3\n"


def test_an_error_is_printed_as_python_prints_it(zygote: Zygote, tmp_path: Path) -> None:
    run = run_of(zygote, tmp_path, "def f(): raise KeyError('gone')\nf()\n")
    assert run.code == 1
    lines = run.errors.splitlines()
    assert lines[-1] == "KeyError: 'gone'"
    assert sum("File" in line for line in lines) == 2


def test_what_does_not_end_is_ended(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SECONDS_MAX", 0.3)
    run = run_of(zygote, tmp_path, "while True: pass\n")
    assert run.code is None
    assert 0.3 <= run.seconds < 30
    # The zygote goes on.
    assert run_of(zygote, tmp_path, "print('next')").output == "next\n"


@pytest.mark.promise("I6")
@pytest.mark.parametrize("seed", range(25))
def test_a_composed_script_comes_back_exactly_or_is_refused_beforehand(
    zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    course = play(generate(seed), tmp_path, zygote)
    assert not course.verdict.is_failure, failure(course)


@pytest.mark.slow
def test_a_zygote_plays_a_script_as_real_processes_do(zygote: Zygote, tmp_path: Path) -> None:
    shape = generate(1)
    forked = play(shape, tmp_path / "forked", zygote)
    real = play(shape, tmp_path / "real", RealProcesses())
    assert forked.verdict is Verdict.EXACT
    assert (forked.verdict, forked.stops, forked.resumed) == (
        real.verdict, real.stops, real.resumed,
    )  # fmt: skip
