"""Jobs in groups."""

import pytest

from gpujob_operator.decide.cache.index import Groups


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
