"""The order in which a script has torch try the kernels of attention."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpujob_worker.inject.surroundings import Surroundings, enabled_kernels, order_is_chosen
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.tune.settings.attention import AttentionWatch
from tests.harness.imitated_gpu import installed

FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
MATH, CUDNN = SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION
ALL = [EFFICIENT, FLASH, MATH, CUDNN]
FLAG = "_is_sdp_priority_order_active"
CUDNN_FIRST = [CUDNN, FLASH, EFFICIENT, MATH]


class Attention(nn.Module):
    def __init__(self, order: list[SDPBackend] | None = None) -> None:
        super().__init__()
        self.inward, self.order = nn.Linear(16, 48), order

    def forward(self, x: Any) -> Any:
        heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.inward(x).chunk(3, -1)]
        chosen = nullcontext() if self.order is None else sdpa_kernel(self.order, set_priority=True)
        with chosen:
            return functional.scaled_dot_product_attention(*heads)


def without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.8 is."""
    monkeypatch.delattr(torch.nn.attention, FLAG, raising=False)


@pytest.mark.parametrize("has_flag", [True, False])
@pytest.mark.parametrize("order", [ALL, [EFFICIENT, FLASH], CUDNN_FIRST])
def test_it_is_in_force_again_around_a_later_run(
    order: list[SDPBackend], has_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_flag:
        without_the_flag(monkeypatch)
    before = Surroundings.now("cpu")
    with sdpa_kernel(order, set_priority=True):
        around = Surroundings.now("cpu")
        with around.entered():
            assert Surroundings.now("cpu") == around
    with around.entered():
        assert enabled_kernels() == tuple(order)
        assert order_is_chosen()
    assert Surroundings.now("cpu") == before


def test_torchs_own_order_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some GPUs the first call of attention puts cuDNN in front."""
    own: Any = torch._C
    order: list[int] = own._get_sdp_priority_order()
    before = Surroundings.now("cuda")

    def capability(*_: Any) -> tuple[int, int]:
        return 9, 0

    def initialized() -> bool:
        return True

    try:
        own._set_sdp_priority_order([3, 1, 2, 0, 4])
        with before.entered():
            assert enabled_kernels() == tuple(CUDNN_FIRST)
        assert order_is_chosen() is not hasattr(torch.nn.attention, FLAG)
        without_the_flag(monkeypatch)
        assert order_is_chosen() is True, "no GPU, for which torch would do so"
        monkeypatch.setattr(torch.cuda, "is_initialized", initialized)
        monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
        assert order_is_chosen() is False
    finally:
        own._set_sdp_priority_order(order)


def test_a_kernel_that_torch_names_twice_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.8 does."""
    monkeypatch.setattr(torch._C, "_get_sdp_priority_order", lambda: [2, 1, 0, 3, 0])
    assert enabled_kernels() == tuple(ALL)


def test_a_torch_that_does_not_tell_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_flag(monkeypatch)
    monkeypatch.delattr(torch._C, "_get_sdp_priority_order")
    assert order_is_chosen() is False
    assert set(enabled_kernels()) == set(ALL)


def test_it_is_a_choice_of_the_script(device: str) -> None:
    x = torch.randn(2, 3, 16, device=device)
    for inside, outside, chosen in ((ALL, None, True), (None, ALL, True), (None, None, False)):
        module = Attention(inside).to(device)
        around = nullcontext() if outside is None else sdpa_kernel(outside, set_priority=True)
        with around, AttentionWatch() as watch:
            module(x)
        assert ("itself" in (watch.refusal() or "")) is chosen


def test_a_split_batch_is_computed_again_in_the_order_of_its_forward() -> None:
    """Backward runs where the script has left its context."""
    with installed() as gpu:
        module = Attention().to("cuda", torch.bfloat16)
        root = Root(module, lambda _: None)
        root.install()
        root.plan = RootPlan(rows_per_step=2, keeps_chunk=False)
        with sdpa_kernel([EFFICIENT, FLASH, MATH], set_priority=True):
            out = module(torch.randn(6, 3, 16, device="cuda", dtype=torch.bfloat16))
        out.square().mean().backward()
        root.remove()
        kernels = {name for name in gpu.launched if name.startswith("_scaled_dot_product")}
    forward = "_scaled_dot_product_efficient_attention"
    assert kernels == {forward, f"{forward}_backward"}
