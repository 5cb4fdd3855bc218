"""Stopped at random steps, again and again, scripts end with the loss of an undisturbed run.

Each course is one run that is stopped three times and ends in its fourth attempt. For more of them
`GPUJOB_RANDOM_STOPS=20` stops each of the four kinds of scripts at twenty steps at least.
"""

import itertools
import os
import random
from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import (
    ACCELERATE,
    END,
    HUGGING_FACE,
    LIGHTNING,
    PLAIN,
    attempt,
)
from tests.harness.worker_process import WorkerRun

STOPS = int(os.environ.get("GPUJOB_RANDOM_STOPS", "3"))
STOPS_OF_A_COURSE = 3
STEPS = 36
pytestmark = pytest.mark.timeout(400 + 60 * STOPS)
# Of all samples, without the noise that loaders add.
LOSS = """
net.eval()
with torch.no_grad(): print("loss", net(x, x.sum(1).tanh())["loss"].item())
"""
SCRIPTS = {
    "plain": PLAIN,
    "accelerate": ACCELERATE,
    "huggingface": HUGGING_FACE,
    "lightning": LIGHTNING,
}
# A stop is not carried out before so many steps after a resume were compared with those before it.
STEPS_COMPARED = 2


def with_loss(name: str) -> str:
    """The script, which also prints its loss at the end."""
    return SCRIPTS[name].replace(END, LOSS + END)


def stops_of(name: str, course: int) -> list[int]:
    """At random; after the first step a loop of Accelerate makes one more before it is saved."""
    rng = random.Random(f"{name} {course}")
    while True:
        stops = sorted(rng.sample(range(2, STEPS), STOPS_OF_A_COURSE))
        if all(after - one >= STEPS_COMPARED for one, after in itertools.pairwise(stops)):
            return stops


def ended(done: WorkerRun) -> list[str]:
    """The loss, and the digest of the weights."""
    assert done.process.exitcode == 0, done.errors
    loss, digest = done.output.splitlines()[-2:]
    assert loss.startswith("loss ")
    return [loss, digest]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["plain", *(pytest.param(name, marks=pytest.mark.trainers) for name in list(SCRIPTS)[1:])],
)
def test_stopped_at_random_steps_it_ends_with_the_same_loss(name: str, tmp_path: Path) -> None:
    source = with_loss(name)
    whole = ended(attempt(tmp_path / "whole", 1, source, 0, 1, 0))
    for course in range(-(-STOPS // STOPS_OF_A_COURSE)):
        ends_as(whole, tmp_path / f"course-{course}", source, stops_of(name, course))


def ends_as(whole: list[str], folder: Path, source: str, stops: list[int]) -> None:
    for number, stop in enumerate(stops, start=1):
        stopped = attempt(folder, number, source, 0, 1, stop)
        assert stopped.process.exitcode == 143, (stops, stopped.errors)
        assert stopped.report["checkpoint"]["step"] == stop, stops
    end = attempt(folder, len(stops) + 1, source, 0, 1, 0)
    assert ended(end) == whole, stops
    assert (end.report["resumedFromStep"], end.report["step"]) == (stops[-1], STEPS), stops


@pytest.mark.slow
def test_a_pass_that_has_one_step_left_is_no_reason_to_save_nothing_more(tmp_path: Path) -> None:
    """Before and after that step the loop evaluates, by another loader."""
    source = with_loss("plain")
    whole = ended(attempt(tmp_path / "whole", 1, source, 0, 1, 0))
    ends_as(whole, tmp_path / "stopped", source, [23, 32])


@pytest.mark.slow
def test_a_stop_while_the_first_steps_are_compared_waits_for_the_last_of_them(
    tmp_path: Path,
) -> None:
    """Nothing is saved of a run that may not be the continuation of the one before."""
    source = with_loss("plain")
    whole = ended(attempt(tmp_path / "whole", 1, source, 0, 1, 0))
    folder = tmp_path / "stopped"
    assert attempt(folder, 1, source, 0, 1, 7).report["checkpoint"]["step"] == 7
    second = attempt(folder, 2, source, 0, 1, 8)
    assert second.process.exitcode == 143, second.errors
    assert second.report["checkpoint"]["step"] == 7 + STEPS_COMPARED
    assert ended(attempt(folder, 3, source, 0, 1, 0)) == whole
