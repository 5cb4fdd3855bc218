"""Finding what changed, and the next deadline, without looking at everything."""

from datetime import datetime
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.groups import ListDiff
from tests.harness.builders import after


class Thing:
    """Told apart by identity alone."""


def test_the_first_picture_is_new() -> None:
    one, other = Thing(), Thing()
    assert ListDiff[Thing]().take((one, other)) == ([one, other], [])


def test_the_same_picture_says_nothing() -> None:
    things = (Thing(), Thing())
    roll = ListDiff[Thing]()
    roll.take(things)
    assert roll.take(things) == ([], [])
    assert roll.take(tuple(reversed(things))) == ([], [])


@given(st.lists(st.lists(st.integers(0, 99), unique=True), max_size=6))
def test_new_and_gone_are_the_differences(pictures: list[list[int]]) -> None:
    things = {number: Thing() for number in range(100)}
    roll, before = ListDiff[Thing](), list[int]()
    for picture in pictures:
        new, gone = roll.take(tuple(things[number] for number in picture))
        assert new == [things[number] for number in picture if number not in before]
        assert gone == [things[number] for number in before if number not in picture]
        before = picture


@given(st.randoms(use_true_random=False))
def test_long_pictures_that_change_a_little(random: Random) -> None:
    roll = ListDiff[Thing]()
    before = [Thing() for _ in range(500)]
    roll.take(tuple(before))
    for _ in range(4):
        picture = _changed(before, random)
        new, gone = roll.take(tuple(picture))
        known, left = set(map(id, before)), set(map(id, picture))
        assert new == [thing for thing in picture if id(thing) not in known]
        assert gone == [thing for thing in before if id(thing) not in left]
        before = picture


def _changed(things: list[Thing], random: Random) -> list[Thing]:
    """Some replaced where they are, some away and some put in, one or many side by side."""
    changed = list(things)
    for _ in range(random.randrange(6)):
        changed[random.randrange(len(changed))] = Thing()
        place = random.randrange(len(changed))
        del changed[place : place + random.choice((1, 2, 32, 33))]
        place = random.randrange(len(changed))
        changed[place:place] = [Thing() for _ in range(random.choice((1, 2, 32, 33)))]
    return changed


def test_a_deadline_is_due_at_its_moment_and_once() -> None:
    deadlines = Deadlines[str]()
    deadlines.put("a", after(10))
    assert deadlines.due(after(9)) == []
    assert deadlines.due(after(10)) == ["a"]
    assert deadlines.due(after(11)) == []


def test_a_later_deadline_replaces_an_earlier_one() -> None:
    deadlines = Deadlines[str]()
    deadlines.put("a", after(10))
    deadlines.put("a", after(20))
    assert deadlines.first == after(20)
    assert deadlines.due(after(15)) == []


def test_no_deadline_is_no_moment() -> None:
    deadlines = Deadlines[str]()
    deadlines.put("a", after(10))
    deadlines.drop("a")
    deadlines.drop("never there")
    assert deadlines.first is None


steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "due"]), st.integers(0, 4), st.integers(0, 30)),
    max_size=200,
)


@given(steps)
def test_deadlines_are_those_of_a_plain_table(steps: list[tuple[str, int, int]]) -> None:
    deadlines, table = Deadlines[int](), dict[int, datetime]()
    for action, key, seconds in steps:
        if action == "put":
            deadlines.put(key, after(seconds))
            table[key] = after(seconds)
        elif action == "drop":
            deadlines.drop(key)
            table.pop(key, None)
        else:
            found = deadlines.due(after(seconds))
            expected = [k for k, at in table.items() if at <= after(seconds)]
            assert sorted(found) == sorted(expected)
            table = {k: at for k, at in table.items() if k not in expected}
        assert deadlines.first == min(table.values(), default=None)
        assert len(deadlines) == len(table)


def test_replaced_deadlines_do_not_pile_up() -> None:
    deadlines = Deadlines[str]()
    for seconds in range(10_000):
        deadlines.put("a", after(seconds))
    assert len(deadlines._heap) < 200  # pyright: ignore[reportPrivateUsage]
