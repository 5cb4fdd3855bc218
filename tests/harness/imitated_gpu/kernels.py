"""Kernels with other results on a CUDA device than on a CPU: masks of dropout and attention."""

from collections.abc import Callable
from typing import Any

import torch

from tests.harness.imitated_gpu.attention import ATTENTION_KERNELS
from tests.harness.imitated_gpu.gpu import ImitatedGpu

_aten = torch.ops.aten


def _assigned(count: int, element_size: int) -> torch.Tensor:
    """Draws in the order of elements. A thread draws for 16 bytes of them, whatever their type."""
    width = 16 // element_size
    threads = -(-count // width)
    return torch.rand(threads * width).view(width, threads).t().reshape(-1)[:count]


def native_dropout(
    gpu: ImitatedGpu, x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks go by type and by the order in memory."""
    mask = torch.empty_like(x, dtype=torch.bool)
    if train is False:
        return x.clone(), mask.fill_(True)
    with gpu.drawing():
        kept = _assigned(x.numel(), x.element_size()) < 1 - p
    mask.as_strided((x.numel(),), (1,)).copy_(kept)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask


KERNELS: dict[Any, Callable[..., Any]] = {
    _aten.native_dropout.default: native_dropout,
    **ATTENTION_KERNELS,
}
