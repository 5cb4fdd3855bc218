"""Jobs in groups."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.cache.groups import Groups


def test_a_group_has_those_that_were_added_and_not_taken_out() -> None:
    groups = Groups[str]()
    groups.add("a", "one")
    groups.add("a", "two")
    groups.add("b", "one")
    groups.discard("a", "one")
    assert (groups.of("a"), groups.of("b"), groups.of("c")) == ({"two"}, {"one"}, set())


def test_a_group_of_nobody_does_not_stay() -> None:
    groups = Groups[str]()
    groups.add("a", "one")
    groups.discard("a", "one")
    assert groups == Groups[str]()
    with pytest.raises(KeyError):
        groups.discard("a", "one")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from("123"))))
def test_groups_of_one_are_like_others(changes: list[tuple[bool, str, str]]) -> None:
    groups, sets = Groups[str](), defaultdict[str, set[str]](set)
    for adds, key, uid in changes:
        if adds:
            groups.add(key, uid)
            sets[key].add(uid)
        elif sets[key]:
            groups.discard(key, uid)
            sets[key].discard(uid)
        assert {key: groups.of(key) for key in "ab"} == {key: sets[key] for key in "ab"}
