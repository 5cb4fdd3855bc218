"""Options survive the way to the owner, nonsense is refused, cards take turns on the cores."""

import os
from pathlib import Path

import pytest

from gpujob_api.cpu_cards import memory_of
from gpujob_local.cluster.nodes import make_cards
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from gpujob_local.cluster.owner import options_from_text, options_to_text


def test_options_survive_the_way_to_the_owner(tmp_path: Path) -> None:
    gpus = NodeOptions("c", cards=0, gpus=("GPU-1", "GPU-2"))
    nodes = (NodeOptions("a", cards=1, spot=True, labels={"x": "y"}), NodeOptions("b"), gpus)
    options = ClusterOptions(nodes=nodes, images={"i:1": tmp_path}, operator_arguments=("--x",))
    assert options_from_text(options_to_text(options)) == options


def test_nonsense_options_are_refused() -> None:
    with pytest.raises(ValueError, match="node names must differ; got a, a"):
        ClusterOptions(nodes=(NodeOptions("a"), NodeOptions("a")))
    with pytest.raises(ValueError, match="cards must be 0 to 64; got 65"):
        NodeOptions("a", cards=65)
    with pytest.raises(ValueError, match="node a: cards must be 0 beside gpus; got 2 cards and 1"):
        NodeOptions("a", gpus=("GPU-1",))
    with pytest.raises(ValueError, match="a card of 5 bytes cannot reserve"):
        ClusterOptions(card_bytes=5)


def test_gpus_take_turns_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def cores(_pid: int) -> set[int]:
        return {4, 7}

    monkeypatch.setattr(os, "sched_getaffinity", cores)
    nodes = (NodeOptions("a", cards=1), NodeOptions("b.c", cards=2, card_bytes=10**9))
    options = ClusterOptions(nodes=nodes)
    first, second = make_cards(options, nodes[0]), make_cards(options, nodes[1])
    assert [card.core for card in (*first, *second)] == [4, 7, 4]
    assert len({card.uuid for card in (*first, *second)}) == 3
    assert second[0].uuid.startswith("CPU-b-c-0-")
    usable_bytes = 2 * 1024**3 - options.card_reserved_bytes
    assert memory_of(first[0].uuid) == usable_bytes
    assert (first[0].memory_bytes, second[0].memory_bytes) == (2 * 1024**3, 10**9)
