"""Close together, on few nodes, all or none."""

from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.packing.gang import place_gang


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
def test_parts_fit_and_add_up(free: dict[str, int], gpus: int) -> None:
    parts = place_gang(free, gpus)
    if parts is None:
        assert sum(free.values()) < gpus
        return
    assert sum(count for _, count in parts) == gpus
    assert len({node for node, _ in parts}) == len(parts)
    assert all(0 < count <= free[node] for node, count in parts)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(1, 40))
def test_as_few_nodes_as_possible(counts: list[int], gpus: int) -> None:
    parts = place_gang({str(index): count for index, count in enumerate(counts)}, gpus)
    if parts is None:
        return
    largest = sorted(counts, reverse=True)
    assert sum(largest[: len(parts) - 1]) < gpus


RACKS = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}


def test_one_rack_that_holds_all_beats_fuller_nodes_of_two() -> None:
    assert place_gang({"a": 4, "b": 1, "c": 3, "d": 3}, 6, [RACKS]) == (("c", 3), ("d", 3))


def test_the_rack_with_fewer_nodes_then_the_one_that_is_left_fullest() -> None:
    assert place_gang({"a": 2, "b": 2, "c": 4, "d": 4}, 4, [RACKS]) == (("c", 4),)
    assert place_gang({"a": 4, "b": 2, "c": 4, "d": 0}, 4, [RACKS]) == (("c", 4),)


def test_what_fits_in_no_rack_fits_in_its_zone_and_else_anywhere() -> None:
    zones = {"a": "z1", "b": "z1", "c": "z1", "d": "z2"}
    free = {"a": 1, "b": 1, "c": 1, "d": 2}
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    assert place_gang(free, 3, [racks, zones]) == (("a", 1), ("b", 1), ("c", 1))
    assert place_gang(free, 5, [racks, zones]) == (("d", 2), ("a", 1), ("b", 1), ("c", 1))


def test_nodes_without_a_rack_are_in_none() -> None:
    assert place_gang({"x": 2, "y": 2, "a": 2, "b": 2}, 4, [RACKS]) == (("a", 2), ("b", 2))


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2)),
    st.integers(1, 20),
)
def test_levels_change_where_and_never_whether(
    free: dict[str, int], racks: dict[str, int], workers: int
) -> None:
    parts = place_gang(free, workers, [racks])
    assert (parts is None) == (place_gang(free, workers) is None)
    if parts is None:
        return
    assert sum(count for _, count in parts) == workers
    rooms = [sum(free[n] for n in free if racks.get(n) == rack) for rack in set(racks.values())]
    in_one = len({racks.get(node, node) for node, _ in parts}) == 1
    assert in_one or max(rooms, default=0) < workers
