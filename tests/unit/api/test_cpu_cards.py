"""The UUIDs of CPU cards are stable, each one's own, and name memory and core."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.bounds import GPU_UUID_PATTERN
from gpujob_api.cpu_cards import cores_of, cpu_card_uuid, cpu_card_uuids, memory_of
from gpujob_api.quantities import GIB, MIB

NODES = st.from_regex(r"[a-z][a-z0-9.-]{0,60}[a-z0-9]", fullmatch=True)


@given(NODES, NODES, st.integers(1, 64))
def test_uuids_are_the_nodes_own_and_stay(node: str, other: str, count: int) -> None:
    uuids = cpu_card_uuids(node, count, GIB)
    assert uuids == cpu_card_uuids(node, count, GIB)
    assert len(set(uuids)) == count
    assert all(re.fullmatch(GPU_UUID_PATTERN, uuid) for uuid in uuids)
    assert node == other or not set(uuids) & set(cpu_card_uuids(other, count, GIB))


@given(NODES, st.integers(1, 16), st.sets(st.integers(0, 255), min_size=1, max_size=32))
def test_the_cpu_cards_of_a_node_take_turns_on_the_cores(
    node: str, count: int, cores: set[int]
) -> None:
    used = [min(cores_of(uuid, sorted(cores))) for uuid in cpu_card_uuids(node, count, GIB)]
    assert set(used) <= cores
    assert len(set(used)) == min(count, len(cores))


def test_nodes_of_one_machine_have_cores_of_their_own() -> None:
    nodes = ("kind-worker", "kind-worker2", "kind-worker3", "kind-worker4")
    cores = {
        min(cores_of(uuid, range(4))) for node in nodes for uuid in cpu_card_uuids(node, 1, GIB)
    }
    assert cores == {0, 1, 2, 3}


def test_a_worker_with_two_cpu_cards_has_two_cores() -> None:
    visible = ", ".join(cpu_card_uuids("n", 2, GIB))
    assert len(cores_of(visible, [3, 5, 7])) == 2


def test_everything_else_names_no_core() -> None:
    names = ("", "all", "none", "void", "0,1", "GPU-5c8f9f6e-1b1a-4c8e-9f5c-5f2d3a1b2c3d")
    # A process node's CPU card: that node sets the cores itself.
    for visible in (*names, cpu_card_uuid("node-0", GIB, "1a2b3c4d")):
        assert cores_of(visible, [0, 1]) == frozenset(), visible
    assert cores_of(cpu_card_uuids("n", 1, GIB)[0], []) == frozenset()


@given(NODES, st.integers(1, 16), st.integers(0, 2**44))
def test_the_memory_of_cards_is_that_of_all_together(
    node: str, count: int, memory_bytes: int
) -> None:
    mebibytes = memory_bytes // MIB
    visible = ",".join(cpu_card_uuids(node, count, memory_bytes))
    assert memory_of(visible) == count * mebibytes * MIB


def test_the_card_of_a_process_node_has_its_memory_too() -> None:
    uuid = cpu_card_uuid("node-1-0", 700 * MIB, "1a2b3c4d")
    assert re.fullmatch(GPU_UUID_PATTERN, uuid)
    assert memory_of(uuid) == 700 * MIB


def test_everything_else_has_no_memory_that_is_known() -> None:
    gpu = "GPU-5c8f9f6e-1b1a-4c8e-9f5c-5f2d3a1b2c3d"
    (card,) = cpu_card_uuids("n", 1, GIB)
    for visible in ("", "all", "void", "0,1", gpu, f"{card},{gpu}", "CPU-node-0-1a2b3c4d"):
        assert memory_of(visible) is None, visible
