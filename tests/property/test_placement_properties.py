"""What must hold of placement for every fleet, mix and sequence of requests."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import GPUState, NodeState

MODELS = ("A100", "T4")
SIZES = {"A100": 80 * GIB, "T4": 16 * GIB}


@st.composite
def gpus(draw: st.DrawFn, uuid: str) -> GPUState:
    model = draw(st.sampled_from(MODELS))
    total = SIZES[model]
    held = draw(st.sampled_from((0, 0, 1, total // 3, total // 2, total - 1, total)))
    return GPUState(
        uuid=uuid,
        model=model,
        memory_total_bytes=total,
        memory_free_bytes=total - held,
        utilization_used_percent=draw(st.integers(0, 100)) if held else 0.0,
        utilization_limit_percent=100.0,
        idle=held == 0,
        held_whole=held > 0 and draw(st.booleans()),
        usable=draw(st.integers(0, 9)) > 0,
        link_group=draw(st.integers(0, 1)),
    )


@st.composite
def nodes(draw: st.DrawFn, number: int) -> NodeState:
    count = draw(st.integers(0, 4))
    return NodeState(
        name=f"n{number}",
        cpu_milli_free=draw(st.integers(0, 16)) * 1000,
        memory_bytes_free=draw(st.integers(0, 64)) * GIB,
        gpus=tuple(draw(gpus(f"n{number}-{column}")) for column in range(count)),
        spot=draw(st.booleans()),
        price_per_gpu_hour=draw(st.sampled_from((None, 1.0, 2.0))),
        eligible=draw(st.integers(0, 9)) > 0,
    )


@st.composite
def node_lists(draw: st.DrawFn) -> list[NodeState]:
    return [draw(nodes(number)) for number in range(draw(st.integers(1, 5)))]


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    exclusive = draw(st.booleans())
    return Demand(
        cpu_milli=draw(st.integers(0, 8)) * 1000,
        memory_bytes=draw(st.integers(0, 16)) * GIB,
        gpus=draw(st.sampled_from((1, 1, 1, 2, 4))),
        gpu_memory_bytes=draw(st.sampled_from((1, GIB, 5 * GIB, 16 * GIB, 33 * GIB, 80 * GIB))),
        utilization_percent=0.0 if exclusive else float(draw(st.integers(0, 100))),
        exclusive=exclusive,
        models=draw(st.sampled_from((frozenset[str](), frozenset({"T4"}), frozenset({"A100"})))),
    )


QUEUES = st.lists(demands(), min_size=1, max_size=12)


def check_row(arrays: NodeArrays, row: int, columns: tuple[int, ...], demand: Demand) -> None:
    """I1 and I2: nothing below zero, and GPUs that could take it."""
    assert len(set(columns)) == demand.gpus
    assert arrays.eligible[row]
    assert arrays.cpu_milli_free[row] >= demand.cpu_milli
    assert arrays.memory_bytes_free[row] >= demand.memory_bytes
    for column in columns:
        model, _ = arrays.kinds[int(arrays.kind[row, column])]
        assert arrays.usable[row, column]
        assert not arrays.held_whole[row, column]
        assert not demand.models or model in demand.models
        assert arrays.memory_free[row, column] >= demand.gpu_memory_bytes
        if demand.exclusive:
            assert arrays.idle[row, column]
        elif not arrays.idle[row, column]:
            together = arrays.utilization_used[row, column] + demand.utilization_percent
            assert together <= arrays.utilization_limit[row, column]


def fits_somewhere(arrays: NodeArrays, demand: Demand) -> bool:
    """The same question asked GPU by GPU."""
    for row in range(len(arrays.names)):
        fitting = 0
        for column in range(len(arrays.uuids[row])):
            try:
                check_row(arrays, row, (column,), replace(demand, gpus=1))
            except AssertionError:
                continue
            fitting += 1
        if fitting >= demand.gpus:
            return True
    return False


@given(node_lists(), QUEUES)
@settings(max_examples=150)
def test_only_room_that_is_there_is_given_and_room_that_is_there_is_found(
    states: list[NodeState], queue: list[Demand]
) -> None:
    arrays, mix, score_cache = NodeArrays.of(states), WorkloadMix.of(Counter(queue)), ScoreCache()
    for demand in queue:
        request = Request(demand)
        found = choose(arrays, request, mix, score_cache)
        assert (found is not None) is fits_somewhere(arrays, demand)
        if found is not None:
            check_row(arrays, found.row, found.gpus, demand)
            arrays.place(found.row, found.gpus, request.allocation)


@given(node_lists(), QUEUES, st.data())
@settings(max_examples=100)
def test_kept_figures_change_no_choice(
    states: list[NodeState], queue: list[Demand], data: st.DataObject
) -> None:
    """Placements, closed GPUs and renewed nodes between choices."""
    arrays, mix, score_cache = NodeArrays.of(states), WorkloadMix.of(Counter(queue)), ScoreCache()
    for demand in [*queue, *queue]:
        request = Request(demand)
        kept = choose(arrays, request, mix, score_cache)
        fresh = choose(arrays.copy(), request, mix, ScoreCache())
        if kept is not None and fresh is not None:
            assert (kept.row, kept.gpus, kept.candidates) == (
                fresh.row,
                fresh.gpus,
                fresh.candidates,
            )
            assert np.isclose(kept.score.total, fresh.score.total)
        else:
            assert kept == fresh
        action = data.draw(st.sampled_from(("place", "place", "close", "renew")))
        if action == "place" and kept is not None:
            arrays.place(kept.row, kept.gpus, request.allocation)
        elif action == "close" and kept is not None and kept.gpus:
            arrays.close(kept.row, kept.gpus[:1])
        elif action == "renew":
            row = data.draw(st.integers(0, len(states) - 1))
            arrays.renew(row, states[row])


@given(node_lists(), QUEUES)
@settings(max_examples=60)
def test_the_same_input_gives_the_same_choices(
    states: list[NodeState], queue: list[Demand]
) -> None:
    def run(mix: WorkloadMix) -> list[object]:
        arrays, score_cache, found = NodeArrays.of(states), ScoreCache(), list[object]()
        for demand in queue:
            choice = choose(arrays, Request(demand), mix, score_cache)
            found.append(choice)
            if choice is not None:
                arrays.place(choice.row, choice.gpus, Request(demand).allocation)
        return found

    assert run(WorkloadMix.of(Counter(queue))) == run(WorkloadMix.of(Counter(queue[::-1])))


@given(node_lists(), demands(), st.data())
@settings(max_examples=100)
def test_more_capacity_never_blocks_what_fitted(
    states: list[NodeState], demand: Demand, data: st.DataObject
) -> None:
    mix = WorkloadMix.of(Counter([demand]))
    before = choose(NodeArrays.of(states), Request(demand), mix, ScoreCache())
    extra = data.draw(nodes(99))
    after = choose(NodeArrays.of([*states, extra]), Request(demand), mix, ScoreCache())
    assert after is not None or before is None
