"""A node's cards in one line each."""

from gpujob_api.gpunode import GPU, GPUNodeSummary, summarize
from gpujob_api.quantities import GIB


def _card(index: int, used_bytes: int, utilization: float, model: str = "H100") -> GPU:
    return GPU(f"GPU-{index}", index, model, 80 * GIB, used_bytes, utilization_percent=utilization)


def test_no_cards() -> None:
    assert summarize(()) == GPUNodeSummary(cards="0")


def test_one_card() -> None:
    assert summarize([_card(0, GIB, 33.4)]) == GPUNodeSummary("1 x H100", "1 GiB of 80 GiB", "33 %")


def test_several_cards_and_models() -> None:
    cards = [_card(0, GIB, 90.0), _card(1, 0, 5.0), _card(2, 2 * GIB, 50.0, "L4")]
    assert summarize(cards) == GPUNodeSummary("2 x H100, 1 x L4", "3 GiB of 240 GiB", "5-90 %")
