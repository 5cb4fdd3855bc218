"""Where `choose` puts a worker, in examples small enough to check by hand."""

import math
from typing import Any

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.request import NodeMask, Request, Selection
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import NodeState
from tests.harness.fleets import CARD_BYTES, gpu, idle_node, node, place_all, shared, whole

HALVES = WorkloadMix.of({shared(40): 1.0})


def chosen(
    arrays: NodeArrays, demand: Demand, mix: WorkloadMix = HALVES, **request: Any
) -> Selection:
    choice = choose(arrays, Request(demand, **request), mix, ScoreCache())
    assert choice is not None
    return choice


def fits(arrays: NodeArrays, demand: Demand, mix: WorkloadMix = HALVES, **request: Any) -> bool:
    return choose(arrays, Request(demand, **request), mix, ScoreCache()) is not None


def test_the_first_node_wins_a_tie() -> None:
    arrays = NodeArrays.of([idle_node("b", 2), idle_node("a", 2)])
    choice = chosen(arrays, shared(40))
    assert (arrays.names[choice.row], choice.gpus) == ("b", (0,))
    assert choice.candidates == 2


def test_a_half_joins_a_half_and_leaves_the_idle_gpu_whole() -> None:
    arrays = NodeArrays.of([idle_node("a", 1), node("b", gpu("b-0"), gpu("b-1", held=40 * GIB))])
    mix = WorkloadMix.of({shared(40): 1.0, whole(): 1.0})
    choice = chosen(arrays, shared(40), mix)
    assert (arrays.names[choice.row], choice.gpus) == ("b", (1,))


def test_room_that_nobody_asks_for_is_filled_first() -> None:
    # 30 GiB are left on the second GPU: a half does not fit there, so they are worth little.
    arrays = NodeArrays.of(
        [node("a", gpu("a-0", held=40 * GIB)), node("b", gpu("b-0", held=50 * GIB))]
    )
    mix = WorkloadMix.of({shared(40): 99.0, shared(25): 1.0})
    choice = chosen(arrays, shared(25), mix)
    assert arrays.names[choice.row] == "b"
    on_the_half = chosen(NodeArrays.of([node("a", gpu("a-0", held=40 * GIB))]), shared(25), mix)
    assert on_the_half.score.worth == pytest.approx(0.5)
    assert choice.score.worth < 0.5


def test_what_the_score_is_made_of_adds_up() -> None:
    score = chosen(NodeArrays.of([idle_node("a", 2, cpu=4)]), shared(40, cpu=3)).score
    parts = score.worth + score.usable + score.stranded + score.scarcity
    assert score.total == pytest.approx(parts)
    assert score.worth == pytest.approx(0.5)


def test_processor_is_kept_for_gpus_that_need_it() -> None:
    # Both have two idle GPUs; on the first the job would leave too little processor for them.
    arrays = NodeArrays.of([idle_node("tight", 2, cpu=20), idle_node("roomy", 2, cpu=64)])
    mix = WorkloadMix.of({whole(cpu=10): 1.0})
    choice = chosen(arrays, Demand(cpu_milli=8000, memory_bytes=GIB, gpus=0), mix)
    assert arrays.names[choice.row] == "roomy"
    assert choice.gpus == ()


def test_models_that_others_need_are_left_to_them() -> None:
    t4 = [gpu(f"t-{n}", model="T4") for n in range(2)]
    arrays = NodeArrays.of([node("t", *t4), idle_node("a", 2)])
    needs_t4 = whole(models=frozenset({"T4"}))
    assert arrays.names[chosen(arrays, whole(), WorkloadMix.of({whole(): 1.0})).row] == "t"
    mix = WorkloadMix.of({whole(): 1.0, needs_t4: 1.0})
    choice = chosen(arrays, whole(), mix)
    assert arrays.names[choice.row] == "a"
    assert arrays.names[chosen(arrays, needs_t4, mix).row] == "t"


def test_n_jobs_of_m_bytes_on_a_gpu_of_n_times_m_less_one() -> None:
    m = 10 * GIB
    arrays = NodeArrays.of([node("a", gpu("a-0", total=4 * m - 1))])
    demand = Demand(gpu_memory_bytes=m)
    where = place_all(arrays, [demand] * 4, WorkloadMix.of({demand: 1.0}))
    assert [name for name, _ in where] == ["a", "a", "a", ""]
    assert arrays.memory_free[0, 0] == m - 1


def test_n_jobs_of_m_bytes_fill_a_gpu_of_n_times_m_to_the_last_byte() -> None:
    m = 10 * GIB + 7
    arrays = NodeArrays.of([node("a", gpu("a-0", total=3 * m))])
    demand = Demand(gpu_memory_bytes=m)
    where = place_all(arrays, [demand] * 4, WorkloadMix.of({demand: 1.0}))
    assert [name for name, _ in where] == ["a", "a", "a", ""]
    assert arrays.memory_free[0, 0] == 0


def test_whole_gpus_take_idle_ones_only() -> None:
    gpus = (gpu("a-0", held=GIB), gpu("a-1"), gpu("a-2"))
    arrays = NodeArrays.of([node("a", *gpus)])
    assert chosen(arrays, whole(2)).gpus == (1, 2)
    assert not fits(arrays, whole(3))


def test_whole_gpus_stay_within_a_link_group() -> None:
    groups = (0, 1, 1, 0, 0)
    gpus = [gpu(f"a-{n}", link_group=group) for n, group in enumerate(groups)]
    assert chosen(NodeArrays.of([node("a", *gpus)]), whole(2)).gpus == (1, 2)
    assert chosen(NodeArrays.of([node("a", *gpus)]), whole(3)).gpus == (0, 3, 4)
    assert chosen(NodeArrays.of([node("a", *gpus)]), whole(4)).gpus == (0, 1, 2, 3)


def test_shared_gpus_of_one_worker_are_different_gpus() -> None:
    arrays = NodeArrays.of([node("a", gpu("a-0"), gpu("a-1", held=40 * GIB), gpu("a-2"))])
    demand = shared(40, gpus=2)
    assert len(set(chosen(arrays, demand, WorkloadMix.of({demand: 1.0})).gpus)) == 2


@pytest.mark.parametrize(("limit", "below"), [(79.0, False), (80.0, True)])
def test_utilization_of_the_pair_stays_below_the_limits(limit: float, below: bool) -> None:
    busy = gpu("a-0", held=10 * GIB, used_percent=50.0)
    arrays = NodeArrays.of([node("a", busy)])
    assert fits(arrays, shared(10, 30.0), utilization_limit_percent=limit) is below


@pytest.mark.parametrize(("utilization_percent", "below"), [(10.0, True), (10.1, False)])
def test_the_tenants_limit_counts_too(utilization_percent: float, below: bool) -> None:
    busy = gpu("a-0", held=GIB, used_percent=50.0, utilization_limit_percent=60.0)
    assert fits(NodeArrays.of([node("a", busy)]), shared(10, utilization_percent)) is below


def test_an_idle_gpu_takes_a_job_that_fills_it() -> None:
    arrays = NodeArrays.of([idle_node("a", 1)])
    assert chosen(arrays, shared(10, 100.0), utilization_limit_percent=50.0).gpus == (0,)


@pytest.mark.parametrize(("prefers_spot", "name"), [(False, "a"), (True, "s")])
def test_spot(prefers_spot: bool, name: str) -> None:
    arrays = NodeArrays.of([idle_node("a", 1), idle_node("s", 1, spot=True)])
    assert arrays.names[chosen(arrays, shared(40), prefers_spot=prefers_spot).row] == name


def test_preferring_spot_is_not_requiring_it() -> None:
    arrays = NodeArrays.of([idle_node("a", 1)])
    assert chosen(arrays, shared(40), prefers_spot=True).row == 0


def test_of_equals_the_cheaper_node_wins_and_an_unknown_price_is_the_highest() -> None:
    arrays = NodeArrays.of(
        [
            idle_node("unknown", 1),
            idle_node("dear", 1, price_per_gpu_hour=3.0),
            idle_node("cheap", 1, price_per_gpu_hour=2.0),
        ]
    )
    assert arrays.names[chosen(arrays, shared(40)).row] == "cheap"


def test_nodes_that_are_not_allowed_are_not_used() -> None:
    arrays = NodeArrays.of(
        [idle_node("a", 1), idle_node("b", 1), idle_node("c", 1, eligible=False)]
    )
    mask = NodeMask("none", arrays.cpu_milli_free < 0)
    assert not fits(arrays, shared(40), nodes=mask)
    only_b = NodeMask("only b", arrays.cpu_milli_free > 0)
    only_b.allowed[[0, 2]] = False
    assert chosen(arrays, shared(40), nodes=only_b).row == 1


def test_each_thing_that_is_missing_keeps_a_request_off() -> None:
    nodes = [
        node("full", gpu("f-0", held=50 * GIB), gpu("f-1", held=60 * GIB)),
        node("small", gpu("s-0", total=16 * GIB)),
        idle_node("busy", 1, cpu=0),
        node("other", gpu("o-0", model="T4")),
    ]
    demand = shared(40, models=frozenset({"A100"}))
    assert not fits(NodeArrays.of(nodes), demand)
    assert chosen(NodeArrays.of([*nodes, idle_node("idle", 1)]), demand).row == len(nodes)


def test_too_few_gpus_on_a_node_are_not_enough() -> None:
    assert not fits(NodeArrays.of([idle_node("a", 2), idle_node("b", 2)]), whole(4))


@pytest.mark.parametrize("nodes", [[], [node("a")]])
def test_no_gpus_at_all(nodes: list[NodeState]) -> None:
    arrays = NodeArrays.of(nodes)
    assert not fits(arrays, shared(1))


def test_an_empty_mix_packs_onto_used_gpus() -> None:
    arrays = NodeArrays.of([idle_node("a", 1), node("b", gpu("b-0", held=GIB))])
    assert chosen(arrays, shared(10), WorkloadMix()).row == 1


def test_what_was_taken_and_renewed_is_free_again() -> None:
    arrays = NodeArrays.of([idle_node("a", 1)])
    score_cache = ScoreCache()
    request = Request(whole())
    choice = choose(arrays, request, HALVES, score_cache)
    assert choice is not None
    arrays.place(choice.row, choice.gpus, request.allocation)
    assert choose(arrays, request, HALVES, score_cache) is None
    arrays.renew(choice.row, idle_node("a", 1))
    assert choose(arrays, request, HALVES, score_cache) == choice


def test_another_mix_with_the_same_ledger() -> None:
    arrays = NodeArrays.of([idle_node("a", 1), node("b", gpu("b-0", held=40 * GIB))])
    score_cache = ScoreCache()
    other = WorkloadMix.of({shared(30): 1.0, whole(): 5.0})
    for mix in (HALVES, other, HALVES):
        assert choose(arrays, Request(shared(30)), mix, score_cache) == choose(
            arrays, Request(shared(30)), mix, ScoreCache()
        )


def test_a_new_kind_of_gpu_joins_between_choices() -> None:
    arrays = NodeArrays.of([idle_node("a", 1), idle_node("b", 1)])
    score_cache = ScoreCache()
    choose(arrays, Request(whole()), HALVES, score_cache)
    arrays.renew(1, node("b", gpu("b-0", total=CARD_BYTES // 2, model="T4")))
    found = choose(arrays, Request(whole()), HALVES, score_cache)
    assert found == choose(arrays, Request(whole()), HALVES, ScoreCache())
    # The smaller GPU is the smaller loss.
    assert isinstance(found, Selection)
    assert found.row == 1


def test_requests_beyond_the_limit_are_evaluated_again() -> None:
    arrays = NodeArrays.of([idle_node("a", 4)])
    score_cache = ScoreCache()
    demands = [shared(10 + n / 100) for n in range(600)]
    for demand in demands:
        choose(arrays, Request(demand), HALVES, score_cache)
    assert len(score_cache.scores) <= 512
    again = choose(arrays, Request(demands[0]), HALVES, score_cache)
    assert again == choose(arrays, Request(demands[0]), HALVES, ScoreCache())


def test_ties_by_the_thousand_fill_nodes_in_order() -> None:
    arrays = NodeArrays.of(idle_node(f"n{n:04d}", 1) for n in range(1000))
    where = place_all(arrays, [whole()] * 50, WorkloadMix.of({whole(): 1.0}))
    assert where == [(f"n{n:04d}", (0,)) for n in range(50)]


def test_scores_are_finite() -> None:
    score = chosen(
        NodeArrays.of([idle_node("a", 8, cpu=1)]), whole(8), WorkloadMix.of({whole(8): 1.0})
    ).score
    assert math.isfinite(score.total)


@pytest.mark.parametrize(
    ("name", "held_gib", "usable"), [("a", 0, 0.0467), ("b", 40, 0.0467), ("c", 48, 0.0133)]
)
def test_the_example_of_the_design_document(name: str, held_gib: int, usable: float) -> None:
    mix = WorkloadMix.of({shared(40): 2.0, shared(32): 1.0})
    alone = NodeArrays.of([node(name, gpu(f"{name}-0", held=held_gib * GIB))])
    score = chosen(alone, shared(32), mix).score
    assert score.worth == pytest.approx(0.5)
    assert score.usable == pytest.approx(usable, abs=1e-4)
    assert score.stranded == score.scarcity == 0.0


def test_the_decision_in_the_example_of_the_design_document() -> None:
    mix = WorkloadMix.of({shared(40): 2.0, shared(32): 1.0})
    held = {"a": 0, "b": 40, "c": 48}
    arrays = NodeArrays.of(node(n, gpu(f"{n}-0", held=gib * GIB)) for n, gib in held.items())
    assert arrays.names[chosen(arrays, shared(32), mix).row] == "c"
    assert arrays.names[chosen(arrays, shared(40), mix).row] == "a"
