"""Places in a given order that the limits of domains allow together."""

from gpujob_operator.decide.packing.apart import DomainLimit, first_apart


def test_a_place_that_is_one_too_many_is_taken_once_the_others_have_as_many() -> None:
    limit = DomainLimit({"a": "za", "b": "zb"}, None, 1)
    assert first_apart("aaabbb", 4, [limit], str) == ["a", "b", "a", "b"]
    assert first_apart("aaa", 2, [limit.cleared()], str) == ["a"]


def test_without_limits_the_first_places_are_taken() -> None:
    assert first_apart("aab", 2, [], str) == ["a", "a"]


def test_the_places_of_a_domain_that_is_full_are_left() -> None:
    limit = DomainLimit({"a": "za", "b": "zb"}, 1, None)
    assert first_apart("aabb", 2, [limit], str) == ["a", "b"]
    assert first_apart("aabb", 3, [limit.cleared()], str) == ["a", "b"]
