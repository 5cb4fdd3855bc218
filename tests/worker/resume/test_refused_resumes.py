"""A plain script that does not come back as it was says why, and starts from the beginning."""

from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import OWN_LOOP, attempt, last_line, said
from tests.harness.worker_process import WorkerRun

pytestmark = pytest.mark.timeout(400)
# Attempts have the same source, and know which they are.
ATTEMPT = 'os.environ["GPUJOB_ATTEMPT"]'
LOOP = """
for epoch in range(2):
    for batch in loader():
        learn(batch)
"""
STEPS = 20
STOP = 14


def script(code: str) -> str:
    return OWN_LOOP.replace("CODE", code.replace("ATTEMPT", ATTEMPT))


def stopped(folder: Path, source: str) -> None:
    done = attempt(folder, 1, source, STOP)
    assert done.process.exitcode == 143, done.errors
    assert done.report["checkpoint"]["step"] == STOP


def refused(done: WorkerRun, reason: str) -> None:
    """The attempt reports it, and leaves as one that was interrupted and saved nothing."""
    assert done.process.exitcode == 144, done.errors
    found = done.report["resumeRefused"]
    assert found["step"] == STOP
    assert reason in found["reason"]
    assert done.report["phase"] == "draining"
    assert done.report["protection"] == "FromBeginning"
    assert f"{found['reason']}; the next attempt starts from the beginning" in said(done)


def starts_from_beginning(folder: Path, number: int, source: str) -> WorkerRun:
    """Protected as before: once the refused checkpoint is put aside, the script is saved again."""
    done = attempt(folder, number, source, 0)
    assert done.process.exitcode == 0, done.errors
    assert done.report["step"] == STEPS
    assert "resumedFromStep" not in done.report
    assert done.report["protection"] == "Exact"
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert f"refused-step-{STOP}" in left
    assert f"step-{STOP}" not in left
    return done


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("batch = batch * float(ATTEMPT)", "the loss of step 1 after the stop is "),
        ("torch.rand(int(ATTEMPT))", "the random numbers of step 1 after the stop are others"),
        (
            'optimizer.param_groups[0]["lr"] = 0.01 * int(ATTEMPT)',
            "the learning rates of step 1 after the stop are others: [0.01] and now [0.02]",
        ),
    ],
    ids=["loss", "random numbers", "learning rates"],
)
def test_a_run_that_is_not_the_continuation_of_the_one_before_is_refused(
    tmp_path: Path, line: str, reason: str
) -> None:
    source = script(LOOP.replace("learn(", f"{line}\n        learn("))
    stopped(tmp_path, source)
    second = attempt(tmp_path, 2, source, 0)
    refused(second, f"this is not the continuation of the run before: {reason}")
    assert second.report["step"] == STOP + 1, "it made another step that was not to be made"
    starts_from_beginning(tmp_path, 3, source)


def test_a_script_that_changed_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path, script(LOOP))
    changed = script(LOOP) + "# A line that changes nothing.\n"
    second = attempt(tmp_path, 2, changed, 0)
    path = tmp_path / "train.py"
    refused(
        second, f"the script is not the one that was saved: {path} has changed since it was saved"
    )
    assert second.report["step"] == 0
    starts_from_beginning(tmp_path, 3, changed)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            'if ATTEMPT == "2": model.extra = torch.nn.Linear(4, 4)\n' + LOOP,
            "Linear has other parameters than were saved",
        ),
        (
            LOOP.replace("range(2)", 'range(2 if ATTEMPT != "2" else 1)'),
            "ended before 1 came",
        ),
    ],
    ids=["another model", "a shorter loop"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, code: str, reason: str) -> None:
    source = script(code)
    stopped(tmp_path, source)
    second = attempt(tmp_path, 2, source, 0)
    refused(second, reason)
    assert second.report["step"] == STOP, "it made a step"
    starts_from_beginning(tmp_path, 3, source)


@pytest.mark.parametrize("ends", ["", "sys.exit()"])
def test_a_script_that_ends_before_its_place_is_refused(tmp_path: Path, ends: str) -> None:
    """It would count as done."""
    loop = LOOP.replace("\n", "\n    ")
    source = script(f'if ATTEMPT != "2":{loop}\n{ends}\n')
    stopped(tmp_path, source)
    second = attempt(tmp_path, 2, source, 0)
    refused(second, "the script ended before it came to the place at which it had stopped")
    starts_from_beginning(tmp_path, 3, source)


AWAY = "the data are away"


@pytest.mark.parametrize("fails", [f'raise OSError("{AWAY}")', f'sys.exit("{AWAY}")'])
def test_a_script_that_fails_once_on_its_way_comes_back_in_the_next_attempt(
    tmp_path: Path, fails: str
) -> None:
    """An error may pass: a volume that is not there yet, a download that was cut off."""
    source = script(f'if ATTEMPT == "2": {fails}\n{LOOP}')
    whole = attempt(tmp_path / "whole", 1, source, 0)
    folder = tmp_path / "stopped"
    stopped(folder, source)
    second = attempt(folder, 2, source, 0)
    assert second.process.exitcode == 1
    assert AWAY in second.errors
    assert "resumeRefused" not in second.report
    end = attempt(folder, 3, source, 0)
    assert last_line(end) == last_line(whole)
    assert end.report["resumedFromStep"] == STOP
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert not left & {"failed-on-the-way", "not-resumable"}


def test_a_script_that_fails_twice_on_its_way_starts_from_the_beginning(tmp_path: Path) -> None:
    source = script(f'if ATTEMPT in "23": raise OSError("{AWAY}")\n{LOOP}')
    stopped(tmp_path, source)
    for number in (2, 3):
        done = attempt(tmp_path, number, source, 0)
        assert done.process.exitcode == 1
        assert AWAY in done.report["failure"]["message"]
        assert ("resumeRefused" in done.report) is (number == 3)
    starts_from_beginning(tmp_path, 4, source)


def test_what_is_refused_twice_is_not_saved_any_more(tmp_path: Path) -> None:
    source = script(LOOP.replace("learn(", "batch = batch * float(ATTEMPT)\n        learn("))
    stopped(tmp_path, source)
    refused(attempt(tmp_path, 2, source, 0), "this is not the continuation")
    third = attempt(tmp_path, 3, source, STOP)
    assert third.process.exitcode == 143, "it is saved again"
    assert third.report["checkpoint"]["step"] == STOP
    refused(attempt(tmp_path, 4, source, 0), "this is not the continuation")
    for number in (5, 6):
        done = attempt(tmp_path, number, source, STOP)
        assert done.process.exitcode == 144, done.errors
        assert done.report["protection"] == "FromBeginning"
        assert "this is not the continuation" in done.report["protectionReason"]
