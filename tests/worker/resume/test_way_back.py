"""A script is brought back by the calls it came by, or is told why it cannot be."""

from pathlib import Path

import pytest

from tests.harness.resumed_loops import ChangedError, Interruption, ResumedLoops

SOURCE = """
EXTRA = 0

def train(epoch, count):
    for i in range(count + EXTRA):
        step((epoch, i))

def main(count):
    for epoch in range(3):
        train(epoch, count)

count = COUNT
main(count)
"""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResumedLoops:
    return ResumedLoops(tmp_path, monkeypatch)


def saved_in(loops: ResumedLoops, source: str, at: int) -> Interruption:
    loops.write(source)
    saved = loops.interrupted(at)
    assert saved.refused is None
    return saved


def test_it_goes_on_with_the_next_turn(loops: ResumedLoops) -> None:
    saved = saved_in(loops, SOURCE.replace("COUNT", "3"), 4)
    assert saved.before == 5
    assert loops.resumed(saved) == [(1, 2), (2, 0), (2, 1), (2, 2)]


def test_the_last_turn_of_a_loop_is_a_place_too(loops: ResumedLoops) -> None:
    saved = saved_in(loops, SOURCE.replace("COUNT", "3"), 8)
    assert saved.before == 9
    assert loops.resumed(saved) == []


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        # A loop that ends before its turn.
        ("range(3)", "range(1)", "the loop in line 9 ended before 1 came"),
        # What a loop is made of is another value.
        ("EXTRA = 0", "EXTRA = 1", "EXTRA is not what it was where the loop in line 5 began"),
        # The way by which the loop is reached.
        ("    train(", "    (train)(", "a step was made before the place"),
        ("\nmain(count)", "\nif count: main(count)", "a step was made before the place"),
        ("\nmain(count)", "\nif not count: main(count)", "the script ended before its place"),
        # A step on the way.
        ("\ncount =", "\nstep(0); count =", "a step was made before the place"),
    ],
)
def test_another_way_is_not_taken(loops: ResumedLoops, before: str, after: str, why: str) -> None:
    saved = saved_in(loops, SOURCE.replace("COUNT", "3"), 4)
    loops.write(SOURCE.replace(before, after).replace("COUNT", "3"))
    with pytest.raises(ChangedError) as raised:
        loops.resumed(saved)
    assert why in str(raised.value)


LIST = """
items = [[1], [2], [3], [4]]
for epoch in range(2):
    for item in items:
        step((epoch, item))
"""


def test_a_list_that_is_shorter_than_the_place_is_not_gone_over(loops: ResumedLoops) -> None:
    saved = saved_in(loops, LIST, 2)
    loops.write(LIST.replace(", [3], [4]", ""))
    with pytest.raises(ChangedError, match="the loop in line 4 ended after 2 of 3 turns"):
        loops.resumed(saved)


LOADER = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader(torch.arange(8), batch_size=2)
for epoch in range(2):
    for batch in loader:
        step((epoch, batch))
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("in loader", "in range(5)", "the loop in line 7 read other loaders"),
        ("in loader", "in []", "the loop in line 7 ended after 0 of 2 turns"),
    ],
)
def test_a_loop_over_other_loaders_is_not_gone_over(
    loops: ResumedLoops, before: str, after: str, why: str
) -> None:
    saved = saved_in(loops, LOADER, 1)
    loops.write(LOADER.replace(before, after))
    with pytest.raises(ChangedError, match=why):
        loops.resumed(saved)


@pytest.mark.parametrize("other", ["True", "1.0", "'1'"])
def test_values_that_are_equal_and_not_the_same_are_other_turns(
    loops: ResumedLoops, other: str
) -> None:
    loops.exact(f"for x in (0, 1, {other}):\n    for i in range(2):\n        step((x, i))\n")
