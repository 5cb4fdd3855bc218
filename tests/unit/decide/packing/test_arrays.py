"""The fleet's arrays: built from plain values, renewed by row, trials taken back exactly."""

import numpy as np
import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.decide.packing.arrays import NodeArrays, WorkerAllocation
from tests.harness.fleets import CARD_BYTES, gpu, idle_node, node

SHARE = WorkerAllocation(2000, 4 * GIB, 20 * GIB, 30.0, whole_gpu=False)
WHOLE = WorkerAllocation(2000, 4 * GIB, 1, 100.0, whole_gpu=True)


def arrays(fleet: NodeArrays) -> dict[str, list[object]]:
    names = (
        *("cpu_milli_free", "memory_bytes_free", "memory_free", "utilization_used"),
        *("utilization_limit", "idle", "held_whole", "usable", "eligible", "price", "spot"),
    )
    return {name: getattr(fleet, name).tolist() for name in names}


def test_rows_and_columns_keep_the_order_given() -> None:
    fleet = NodeArrays.of([idle_node("b", 2), idle_node("a", 1)])
    assert fleet.names == ("b", "a")
    assert fleet.uuids == [("b-0", "b-1"), ("a-0",)]
    assert fleet.usable.tolist() == [[True, True], [True, False]]
    assert fleet.gpu_count == 3


def test_a_node_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        NodeArrays.of([idle_node("a"), idle_node("a")])


def test_no_nodes_and_nodes_without_gpus() -> None:
    assert NodeArrays.of([]).gpu_count == 0
    fleet = NodeArrays.of([node("a")])
    assert fleet.gpu_count == 0
    assert not fleet.usable.any()


def test_placing_takes_what_was_asked() -> None:
    fleet = NodeArrays.of([idle_node("a", 2)])
    fleet.place(0, (1,), SHARE)
    assert fleet.cpu_milli_free[0] == 62_000
    assert fleet.memory_bytes_free[0] == 508 * GIB
    assert fleet.memory_free[0].tolist() == [CARD_BYTES, CARD_BYTES - 20 * GIB]
    assert fleet.utilization_used[0].tolist() == [0.0, 30.0]
    assert fleet.idle[0].tolist() == [True, False]
    assert not fleet.held_whole.any()


def test_a_whole_gpu_is_taken() -> None:
    fleet = NodeArrays.of([idle_node("a", 2)])
    fleet.place(0, (0,), WHOLE)
    assert fleet.held_whole[0].tolist() == [True, False]


def test_every_change_moves_the_clock_of_its_row_only() -> None:
    fleet = NodeArrays.of([idle_node("a"), idle_node("b")])
    seen = fleet.clock
    fleet.place(1, (0,), SHARE)
    assert np.flatnonzero(fleet.changed_at_clock > seen).tolist() == [1]
    seen = fleet.clock
    fleet.renew(1, idle_node("b"))
    assert np.flatnonzero(fleet.changed_at_clock > seen).tolist() == [1]
    seen = fleet.clock
    fleet.close(0, (2,))
    assert np.flatnonzero(fleet.changed_at_clock > seen).tolist() == [0]


def test_renewing_equals_building_again() -> None:
    after = node("b", gpu("b-0", held=GIB, used_percent=5.0), spot=True, price_per_gpu_hour=2.0)
    fleet = NodeArrays.of([idle_node("a", 2), idle_node("b", 2)])
    fleet.renew(1, after)
    again = arrays(NodeArrays.of([idle_node("a", 2), after]))
    renewed = arrays(fleet)
    for array in (again, renewed):
        del array["utilization_limit"]
    assert renewed == again


def test_a_gpu_that_is_gone_leaves_nothing_behind() -> None:
    fleet = NodeArrays.of([idle_node("a", 2)])
    fleet.renew(0, idle_node("a", 1))
    assert fleet.gpu_count == 1
    assert fleet.memory_total[0].tolist() == [CARD_BYTES, 0]
    assert fleet.usable[0].tolist() == [True, False]


def test_renewing_refuses_another_node_and_more_gpus_than_columns() -> None:
    fleet = NodeArrays.of([idle_node("a", 2)])
    with pytest.raises(ValueError, match="row 0 is a"):
        fleet.renew(0, idle_node("b", 2))
    with pytest.raises(ValueError, match="3 GPUs"):
        fleet.renew(0, idle_node("a", 3))


def test_a_copy_is_independent() -> None:
    fleet = NodeArrays.of([idle_node("a", 2)])
    before = arrays(fleet)
    copy = fleet.copy()
    copy.place(0, (0,), WHOLE)
    copy.close(0, (1,))
    assert arrays(fleet) == before
    assert arrays(copy) != before


def test_gpus_of_one_model_and_size_are_of_one_kind() -> None:
    fleet = NodeArrays.of(
        [
            node("a", gpu("a-0"), gpu("a-1", model="T4", total=16 * GIB)),
            node("b", gpu("b-0")),
        ]
    )
    assert fleet.kinds == [("A100", CARD_BYTES), ("T4", 16 * GIB)]
    assert fleet.kind.tolist() == [[0, 1], [0, 0]]


def test_a_gpu_without_memory_is_not_usable() -> None:
    fleet = NodeArrays.of([node("a", gpu("a-0", total=0))])
    assert not fleet.usable.any()


def test_size_is_that_of_the_arrays() -> None:
    one = NodeArrays.of([idle_node("a")]).size_bytes
    ten = NodeArrays.of([idle_node(f"n{n}") for n in range(10)]).size_bytes
    assert ten == 10 * one > 0
