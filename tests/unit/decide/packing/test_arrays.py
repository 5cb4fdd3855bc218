"""The fleet's arrays: built from plain values, renewed by row, trials taken back exactly."""

import numpy as np
import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.states import WorkerAllocation
from tests.harness.fleets import CARD_BYTES, gpu, idle_node, node

SHARE = WorkerAllocation(2000, 4 * GIB, 20 * GIB, 30.0, whole_gpu=False)
WHOLE = WorkerAllocation(2000, 4 * GIB, 1, 100.0, whole_gpu=True)


def columns_of(arrays: NodeArrays) -> dict[str, list[object]]:
    names = (
        *("cpu_milli_free", "memory_bytes_free", "memory_free", "utilization_used"),
        *("utilization_limit", "idle", "held_whole", "usable", "eligible", "price", "spot"),
    )
    return {name: getattr(arrays, name).tolist() for name in names}


def test_rows_and_columns_keep_the_order_given() -> None:
    arrays = NodeArrays.of([idle_node("b", 2), idle_node("a", 1)])
    assert arrays.names == ("b", "a")
    assert arrays.uuids == [("b-0", "b-1"), ("a-0",)]
    assert arrays.usable.tolist() == [[True, True], [True, False]]
    assert arrays.gpu_count == 3


def test_a_node_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        NodeArrays.of([idle_node("a"), idle_node("a")])


def test_no_nodes_and_nodes_without_gpus() -> None:
    assert NodeArrays.of([]).gpu_count == 0
    arrays = NodeArrays.of([node("a")])
    assert arrays.gpu_count == 0
    assert not arrays.usable.any()


def test_placing_takes_what_was_asked() -> None:
    arrays = NodeArrays.of([idle_node("a", 2)])
    arrays.place(0, (1,), SHARE)
    assert arrays.cpu_milli_free[0] == 62_000
    assert arrays.memory_bytes_free[0] == 508 * GIB
    assert arrays.memory_free[0].tolist() == [CARD_BYTES, CARD_BYTES - 20 * GIB]
    assert arrays.utilization_used[0].tolist() == [0.0, 30.0]
    assert arrays.idle[0].tolist() == [True, False]
    assert not arrays.held_whole.any()


def test_a_whole_gpu_is_taken() -> None:
    arrays = NodeArrays.of([idle_node("a", 2)])
    arrays.place(0, (0,), WHOLE)
    assert arrays.held_whole[0].tolist() == [True, False]


def test_every_change_moves_the_clock_of_its_row_only() -> None:
    arrays = NodeArrays.of([idle_node("a"), idle_node("b")])
    seen = arrays.clock
    arrays.place(1, (0,), SHARE)
    assert np.flatnonzero(arrays.changed_at_clock > seen).tolist() == [1]
    seen = arrays.clock
    arrays.renew(1, idle_node("b"))
    assert np.flatnonzero(arrays.changed_at_clock > seen).tolist() == [1]
    seen = arrays.clock
    arrays.close(0, (2,))
    assert np.flatnonzero(arrays.changed_at_clock > seen).tolist() == [0]


def test_renewing_equals_building_again() -> None:
    after = node("b", gpu("b-0", held=GIB, used_percent=5.0), spot=True, price_per_gpu_hour=2.0)
    arrays = NodeArrays.of([idle_node("a", 2), idle_node("b", 2)])
    arrays.renew(1, after)
    again = columns_of(NodeArrays.of([idle_node("a", 2), after]))
    renewed = columns_of(arrays)
    for array in (again, renewed):
        del array["utilization_limit"]
    assert renewed == again


def test_a_gpu_that_is_gone_leaves_nothing_behind() -> None:
    arrays = NodeArrays.of([idle_node("a", 2)])
    arrays.renew(0, idle_node("a", 1))
    assert arrays.gpu_count == 1
    assert arrays.memory_total[0].tolist() == [CARD_BYTES, 0]
    assert arrays.usable[0].tolist() == [True, False]


def test_renewing_refuses_another_node_and_more_gpus_than_columns() -> None:
    arrays = NodeArrays.of([idle_node("a", 2)])
    with pytest.raises(ValueError, match="row 0 is a"):
        arrays.renew(0, idle_node("b", 2))
    with pytest.raises(ValueError, match="3 GPUs"):
        arrays.renew(0, idle_node("a", 3))


def test_a_copy_is_independent() -> None:
    arrays = NodeArrays.of([idle_node("a", 2)])
    before = columns_of(arrays)
    copy = arrays.copy()
    copy.place(0, (0,), WHOLE)
    copy.close(0, (1,))
    assert columns_of(arrays) == before
    assert columns_of(copy) != before


def test_gpus_of_one_model_and_size_are_of_one_kind() -> None:
    arrays = NodeArrays.of(
        [
            node("a", gpu("a-0"), gpu("a-1", model="T4", total=16 * GIB)),
            node("b", gpu("b-0")),
        ]
    )
    assert arrays.kinds == [("A100", CARD_BYTES), ("T4", 16 * GIB)]
    assert arrays.kind.tolist() == [[0, 1], [0, 0]]


def test_a_gpu_without_memory_is_not_usable() -> None:
    arrays = NodeArrays.of([node("a", gpu("a-0", total=0))])
    assert not arrays.usable.any()


def test_size_is_that_of_the_arrays() -> None:
    one = NodeArrays.of([idle_node("a")]).size_bytes
    ten = NodeArrays.of([idle_node(f"n{n}") for n in range(10)]).size_bytes
    assert ten == 10 * one > 0
