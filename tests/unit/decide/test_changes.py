"""Finding what changed, and the next deadline, without looking at everything."""

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.changes import Deadlines, Roll
from tests.harness.builders import after


class Thing:
    """Told apart by identity alone."""


def test_the_first_picture_is_new() -> None:
    one, other = Thing(), Thing()
    assert Roll[Thing]().take((one, other)) == ([one, other], [])


def test_the_same_picture_says_nothing() -> None:
    things = (Thing(), Thing())
    roll = Roll[Thing]()
    roll.take(things)
    assert roll.take(things) == ([], [])
    assert roll.take(tuple(reversed(things))) == ([], [])


@given(st.lists(st.tuples(st.sets(st.integers(0, 9)), st.randoms(use_true_random=False))))
def test_new_and_gone_are_the_differences(pictures: list[tuple[set[int], object]]) -> None:
    things = {number: Thing() for number in range(10)}
    roll, before = Roll[Thing](), set[int]()
    for picture, _ in pictures:
        new, gone = roll.take(tuple(things[number] for number in sorted(picture)))
        assert new == [things[number] for number in sorted(picture - before)]
        assert gone == [things[number] for number in sorted(before - picture)]
        before = picture


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
    deadlines.drop(("a", "never there"))
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
            deadlines.drop((key,))
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
