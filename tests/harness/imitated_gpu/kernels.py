"""Kernels with other results on a CUDA device than on a CPU: masks of dropout and attention."""

import math
from collections.abc import Callable
from typing import Any

import torch

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


def _weights(
    q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q.float() @ k.float().transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not()
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def _kept(weights: torch.Tensor, seed: torch.Tensor, dtype: torch.dtype, p: float) -> torch.Tensor:
    if p == 0:
        return torch.ones_like(weights)
    generator = torch.Generator().manual_seed(int(seed) * 16 + dtype.itemsize)
    return (torch.rand(weights.shape, generator=generator) < 1 - p).float() / (1 - p)


def efficient_attention(
    gpu: ImitatedGpu,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """With dropout its masks go by the type of the query."""
    del compute_log_sumexp
    with gpu.drawing():
        seed = torch.randint(2**31, ()) if dropout_p > 0 else torch.zeros((), dtype=torch.int64)
    weights, total = _weights(q, k, bias, is_causal, scale or q.shape[-1] ** -0.5)
    out = (weights * _kept(weights, seed, q.dtype, dropout_p)) @ v.float()
    return out.to(q.dtype), total, seed, torch.zeros((), dtype=torch.int64)


def efficient_attention_backward(
    gpu: ImitatedGpu,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    total: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    del gpu, out, total, offset
    factor = scale or q.shape[-1] ** -0.5
    weights, _ = _weights(q, k, bias, is_causal, factor)
    kept = _kept(weights, seed, q.dtype, dropout_p)
    grad_v = (weights * kept).transpose(-2, -1) @ grad.float()
    of_weights = grad.float() @ v.float().transpose(-2, -1) * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    grad_q = of_scores @ k.float() * factor
    grad_k = of_scores.transpose(-2, -1) @ q.float() * factor
    grad_bias = of_scores.to(q.dtype) if bias is not None and grad_input_mask[3] else None
    return grad_q.to(q.dtype), grad_k.to(q.dtype), grad_v.to(q.dtype), grad_bias


KERNELS: dict[Any, Callable[..., Any]] = {
    _aten.native_dropout.default: native_dropout,
    _aten._scaled_dot_product_efficient_attention.default: efficient_attention,
    _aten._scaled_dot_product_efficient_attention_backward.default: efficient_attention_backward,
}
