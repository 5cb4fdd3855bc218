"""What the first steps after a resume tell about the run."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpujob_worker.resume.continuation import FILE, STEPS, Continuation
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session

Step = tuple[float | None, float]


def play(
    continuation: Continuation, steps: list[Step], *, seed: int = 3, draws: int = 0
) -> list[str | None]:
    """What each step is found to be. A step is its loss and its learning rate."""
    random.seed(seed)
    torch.manual_seed(seed)
    found: list[str | None] = []
    for loss, rate in steps:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
        value = None if loss is None else torch.tensor(loss, dtype=torch.float64)
        torch.rand(1 + draws)
        found.append(continuation.passes(value, optimizer))
    return found


def resumed(
    folder: Path,
    before: list[Step],
    after: list[Step],
    *,
    step: int = 3,
    device: str = "",
    **how: Any,
) -> tuple[list[str | None], str]:
    """Of a run that stopped after step 3, having made the steps `before`, and resumes."""
    stopped = Continuation(Session(Environment()), folder)
    stopped.record_after(3)
    assert play(stopped, before) == [None] * len(before)
    session = Session(Environment())
    session.state.device = device
    continuation = Continuation(session, folder)
    continuation.compare_after(step)
    found = play(continuation, after, **how)
    return found, session.log.line("resume check")


def test_two_steps_that_are_alike_are_a_continuation(tmp_path: Path) -> None:
    steps: list[Step] = [(0.5, 0.1), (0.25, 0.1)]
    found, line = resumed(tmp_path, steps, steps)
    assert found == [None, None]
    assert "2 steps compared: the loss is 0.25, the same" in line


def test_only_the_first_steps_are_written_and_compared(tmp_path: Path) -> None:
    steps: list[Step] = [(0.5, 0.1), (0.25, 0.1), (0.2, 0.1)]
    found, _ = resumed(tmp_path, steps, [*steps[:2], (7.0, 0.9)])
    assert found == [None] * 3
    assert len(json.loads((tmp_path / FILE.format(rank=0)).read_text())["next"]) == STEPS


def test_one_step_is_compared_where_the_run_was_stopped_after_one(tmp_path: Path) -> None:
    found, line = resumed(tmp_path, [(0.5, 0.1)], [(0.5, 0.1), (9.0, 0.1)])
    assert found == [None, None]
    assert "1 step compared" in line


@pytest.mark.parametrize(
    ("after", "place", "text"),
    [
        ([(0.6, 0.1)], 0, "the loss of step 1 after the stop is 0.6 and would have been 0.5"),
        ([(-0.5, 0.1)], 0, "the loss of step 1"),
        ([(float("nan"), 0.1)], 0, "is None and would have been 0.5"),
        ([(None, 0.1)], 0, "is None and would have been 0.5"),
        ([(0.5, 0.1), (0.26, 0.1)], 1, "the loss of step 2 after the stop is 0.26"),
        ([(0.5, 0.2)], 0, r"the learning rates of step 1 .* others: \[0.1\] and now \[0.2\]"),
    ],
)
def test_what_differs_is_named_with_both_numbers(
    after: list[Step], place: int, text: str, tmp_path: Path
) -> None:
    found, _ = resumed(tmp_path, [(0.5, 0.1), (0.25, 0.1)], after)
    assert found[:place] == [None] * place
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(found[place])


@pytest.mark.parametrize("how", [{"seed": 4}, {"draws": 1}])
def test_other_random_numbers_are_another_run(how: dict[str, Any], tmp_path: Path) -> None:
    found, _ = resumed(tmp_path, [(0.5, 0.1)], [(0.5, 0.1)], **how)
    assert found == ["the random numbers of step 1 after the stop are others"]


def test_how_a_script_prints_arrays_tells_nothing(tmp_path: Path) -> None:
    stopped = Continuation(Session(Environment()), tmp_path)
    stopped.record_after(3)
    np.random.seed(3)
    play(stopped, [(0.5, 0.1)])
    continuation = Continuation(Session(Environment()), tmp_path)
    continuation.compare_after(3)
    with np.printoptions(threshold=5):
        assert play(continuation, [(0.5, 0.1)]) == [None]


def test_numbers_of_numpy_are_compared(tmp_path: Path) -> None:
    stopped = Continuation(Session(Environment()), tmp_path)
    stopped.record_after(3)
    np.random.seed(3)
    play(stopped, [(0.5, 0.1)])
    continuation = Continuation(Session(Environment()), tmp_path)
    continuation.compare_after(3)
    np.random.rand()
    found = play(continuation, [(0.5, 0.1)])
    assert found == ["the random numbers of step 1 after the stop are others"]


@pytest.mark.parametrize(
    ("device", "loss", "alike"),
    [
        ("cpu", 0.500001, True),
        ("cpu", 0.5001, False),
        ("cuda", 0.5001, True),
        ("cuda", 0.501, False),
    ],
)
def test_another_gpu_may_round_otherwise(
    device: str, loss: float, alike: bool, tmp_path: Path
) -> None:
    found, _ = resumed(tmp_path, [(0.5, 0.1)], [(loss, 0.1)], device=device)
    assert (found == [None]) is alike


def test_steps_without_a_loss_are_compared_by_the_rest(tmp_path: Path) -> None:
    found, _ = resumed(tmp_path, [(None, 0.1)], [(None, 0.1)])
    assert found == [None]
    found, _ = resumed(tmp_path, [(None, 0.1)], [(0.5, 0.1)])
    assert found[0] is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"step": 3, "next": 5}',
        '{"step": 3, "next": [3]}',
        '{"step": 4, "next": []}',
    ],
)
def test_a_file_that_tells_nothing_leaves_nothing_to_compare(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE.format(rank=0)).write_text(text)
    session = Session(Environment())
    continuation = Continuation(session, tmp_path)
    continuation.compare_after(3)
    assert not continuation.compares
    assert "nothing was compared" in session.log.line("resume check")
    assert play(continuation, [(0.5, 0.1)]) == [None]


def test_steps_of_another_checkpoint_are_not_compared(tmp_path: Path) -> None:
    found, line = resumed(tmp_path, [(0.5, 0.1)], [(9.0, 0.1)], step=4)
    assert found == [None]
    assert "nothing was compared" in line


class Others:
    """The other processes of a gang: their words on each question, and what was asked."""

    def __init__(self, **words: str) -> None:
        self.words = words
        self.asked: list[tuple[str, str | None]] = []

    def first_word(self, question: str, word: str | None) -> str | None:
        self.asked.append((question, word))
        return self.words.get(question.replace(" ", "_"), word)


def resumed_beside(folder: Path, others: Others) -> list[str | None]:
    """Of the second process; before the stop it made two steps."""
    steps: list[Step] = [(0.5, 0.1), (0.25, 0.1)]
    stopped = Continuation(Session(Environment()), folder, 1)
    stopped.record_after(3)
    play(stopped, steps)
    continuation = Continuation(Session(Environment()), folder, 1, others.first_word)
    continuation.compare_after(3)
    return play(continuation, [*steps, (0.2, 0.1)])


def test_processes_of_a_gang_have_files_of_their_own(tmp_path: Path) -> None:
    others = Others()
    assert resumed_beside(tmp_path, others) == [None] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["continuation-1.json"]
    assert others.asked == [("steps", "2"), ("step 1", None), ("step 2", None)]


def test_what_another_process_found_counts(tmp_path: Path) -> None:
    found = resumed_beside(tmp_path, Others(step_2="its loss is another"))
    assert found[:2] == [None, "its loss is another"]


def test_all_compare_as_many_steps(tmp_path: Path) -> None:
    others = Others(steps="1")
    assert resumed_beside(tmp_path, others) == [None] * 3
    assert [question for question, _ in others.asked] == ["steps", "step 1"]


def test_a_process_that_knows_nothing_waits_for_one_that_does(tmp_path: Path) -> None:
    others = Others(steps="2")
    continuation = Continuation(Session(Environment()), tmp_path, 1, others.first_word)
    continuation.compare_after(3)
    assert continuation.compares
    assert play(continuation, [(0.5, 0.1)] * 3) == [None] * 3
    assert [question for question, _ in others.asked] == ["steps", "step 1", "step 2"]
