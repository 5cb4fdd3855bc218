"""A side that follows another is the same but for what is to be different on it."""

from dataclasses import fields
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import WorkloadMix
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.placement.node_views import DerivedView, PackedNodes
from tests.harness.fleets import gpu, idle_node, node, shared

REQUEST = Request(shared(30, 20.0))
MIX = WorkloadMix.of({shared(30, 20.0): 1.0})


def main_side() -> PackedNodes:
    return PackedNodes(NodeArrays.of([idle_node("a", 2), idle_node("b", 3), node("c", gpu("c-0"))]))


def assert_same(one: NodeArrays, other: NodeArrays) -> None:
    for column in fields(one):
        value = getattr(one, column.name)
        if isinstance(value, np.ndarray) and column.name != "changed_at_clock":
            assert np.array_equal(value, getattr(other, column.name)), column.name
    assert (one.names, one.uuids, one.kinds) == (other.names, other.uuids, other.kinds)


def test_at_first_every_row_is_new_and_then_only_what_changed() -> None:
    main, follower = main_side(), DerivedView()
    packed, rows = follower.follow(main)
    assert rows == [0, 1, 2]
    assert packed.arrays is not main.arrays
    assert follower.follow(main) == (packed, [])
    main.arrays.place(1, [0], REQUEST.allocation)
    assert follower.follow(main)[1] == [1]
    assert_same(packed.arrays, main.arrays)


def test_what_was_planned_on_it_does_not_stay() -> None:
    main, follower = main_side(), DerivedView()
    packed, _ = follower.follow(main)
    packed.arrays.place(2, [0], REQUEST.allocation)
    assert main.arrays.idle[2, 0]
    assert follower.follow(main)[1] == [2]
    assert_same(packed.arrays, main.arrays)


def test_what_is_settled_stays_until_the_row_changes() -> None:
    main, follower = main_side(), DerivedView()
    packed, _ = follower.follow(main)
    packed.arrays.close(0, [1])
    follower.settle()
    assert follower.follow(main)[1] == []
    assert not packed.arrays.usable[0, 1]
    main.arrays.place(0, [0], REQUEST.allocation)
    assert follower.follow(main)[1] == [0]
    assert packed.arrays.usable[0, 1]


def test_another_fleet_is_followed_from_the_start() -> None:
    follower = DerivedView()
    first, _ = follower.follow(main_side())
    main = PackedNodes(NodeArrays.of([idle_node("z", 1)]))
    second, rows = follower.follow(main)
    assert (rows, second is first) == ([0], False)
    assert_same(second.arrays, main.arrays)


@given(st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_figures_that_were_kept_change_no_choice(random: Random) -> None:
    main, follower = main_side(), DerivedView()
    for _ in range(12):
        packed, _ = follower.follow(main)
        kept = choose(packed.arrays, REQUEST, MIX, packed.score_cache)
        assert kept == choose(main.arrays.copy(), REQUEST, MIX, ScoreCache())
        if kept is not None:
            one = random.choice((main, packed))
            one.arrays.place(kept.row, kept.gpus, REQUEST.allocation)
        if random.random() < 0.3:
            held = random.randrange(80) * GIB
            main.arrays.renew(2, node("c", gpu("c-0", held=held)))
