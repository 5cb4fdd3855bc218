from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.gangs import place_gang


def test_the_node_where_least_stays_free() -> None:
    assert place_gang({"a": 4, "b": 2, "c": 3}, 2) == (("b", 2),)


def test_whole_nodes_then_the_tightest_rest() -> None:
    free = {"a": 4, "b": 4, "c": 4, "d": 2}
    assert place_gang(free, 10) == (("a", 4), ("b", 4), ("d", 2))


def test_all_or_none() -> None:
    assert place_gang({"a": 1, "b": 2}, 4) is None
    assert place_gang({}, 1) is None
    assert place_gang({"a": 1}, 0) is None


@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 8)), st.integers(1, 40))
def test_parts_fit_and_add_up(free: dict[str, int], cards: int) -> None:
    parts = place_gang(free, cards)
    if parts is None:
        assert sum(free.values()) < cards
        return
    assert sum(count for _, count in parts) == cards
    assert len({node for node, _ in parts}) == len(parts)
    assert all(0 < count <= free[node] for node, count in parts)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(1, 40))
def test_as_few_nodes_as_possible(counts: list[int], cards: int) -> None:
    parts = place_gang({str(index): count for index, count in enumerate(counts)}, cards)
    if parts is None:
        return
    largest = sorted(counts, reverse=True)
    assert sum(largest[: len(parts) - 1]) < cards
