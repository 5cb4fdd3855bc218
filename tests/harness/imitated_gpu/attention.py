"""`scaled_dot_product_attention` on the device: which kernel takes a call, and the fused kernels.

As torch chooses for CUDA: the first one in the order of priority that is allowed and takes the
inputs. Flash attention and cuDNN's take half precision only, flash attention no mask. The order is
the one that torch has where it finds no cuDNN that it prefers.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from tests.harness.imitated_gpu.gpu import ImitatedGpu

_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_FLASH_HEAD_MAX, _CUDNN_HEAD_MAX, _CUDNN_HEAD_MULTIPLE = 256, 128, 8


def kernel_for(query: torch.Tensor, bias: torch.Tensor | None) -> SDPBackend:
    """`MATH` stands for the plain operations, which no kernel of attention is launched for."""
    allowed = {
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
        SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
    }
    order: list[int] = torch._C._get_sdp_priority_order()  # pyright: ignore
    for backend in map(SDPBackend, order):
        if allowed.get(backend, False) and _takes(backend, query, bias):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _takes(backend: SDPBackend, query: torch.Tensor, bias: torch.Tensor | None) -> bool:
    if backend == SDPBackend.MATH:
        return True
    if query.dim() != 4:
        return False
    head, half = query.shape[-1], query.dtype in _HALF
    if backend == SDPBackend.FLASH_ATTENTION:
        return half and bias is None and head <= _FLASH_HEAD_MAX
    if backend == SDPBackend.CUDNN_ATTENTION:
        return half and head <= _CUDNN_HEAD_MAX and head % _CUDNN_HEAD_MULTIPLE == 0
    return True


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """As torch calls it. Groups of queries are left to the plain operations."""
    given = _as_autocast_has_them(query, key, value)
    bias = _as_numbers(attn_mask, given[0].dtype)
    backend = kernel_for(given[0], bias) if not enable_gqa else SDPBackend.MATH
    if backend == SDPBackend.FLASH_ATTENTION:
        flash = _aten._scaled_dot_product_flash_attention
        return flash(*given, dropout_p, is_causal, False, scale=scale)[0]
    if backend == SDPBackend.CUDNN_ATTENTION:
        cudnn = _aten._scaled_dot_product_cudnn_attention
        return cudnn(*given, bias, True, dropout_p, is_causal, False, scale=scale)[0]
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        efficient = _aten._scaled_dot_product_efficient_attention
        return efficient(*given, bias, True, dropout_p, is_causal, scale=scale)[0]
    if is_causal:
        # As torch's own code makes it, which would be on the host.
        sides = query.shape[-2], key.shape[-2]
        seen = torch.ones(sides, dtype=torch.bool, device=query.device).tril()
        bias = _as_numbers(seen, given[0].dtype)
    plain = _aten._scaled_dot_product_attention_math
    options = {"scale": scale, "enable_gqa": enable_gqa}
    return plain(*given, bias, dropout_p, False, **options)[0]


def _as_numbers(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def _as_autocast_has_them(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not torch.is_autocast_enabled("cuda"):
        return given
    dtype = torch.get_autocast_dtype("cuda")
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in given)


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
    """With dropout the masks go by the type of the query, and each kernel has its own seeds."""
    if p == 0:
        return torch.ones_like(weights)
    generator = torch.Generator().manual_seed(int(seed) * 16 + dtype.itemsize)
    return (torch.rand(weights.shape, generator=generator) < 1 - p).float() / (1 - p)


def _forward(
    gpu: ImitatedGpu,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    own: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, the logarithms, and the seed of the mask; `own` is that of the kernel."""
    q, k, v = given
    seed = torch.zeros((), dtype=torch.int64)
    if dropout_p > 0:
        with gpu.drawing():
            seed = torch.randint(2**31, ()) * 4 + own
    weights, total = _weights(q, k, bias, is_causal, scale or q.shape[-1] ** -0.5)
    out = (weights * _kept(weights, seed, q.dtype, dropout_p)) @ v.float()
    return out.to(q.dtype), total, seed


def _backward(
    grad: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    seed: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the query, the key, the value and the scores."""
    q, k, v = given
    factor = scale or q.shape[-1] ** -0.5
    weights, _ = _weights(q, k, bias, is_causal, factor)
    kept = _kept(weights, seed, q.dtype, dropout_p)
    grad_v = (weights * kept).transpose(-2, -1) @ grad.float()
    of_weights = grad.float() @ v.float().transpose(-2, -1) * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    grad_q = of_scores @ k.float() * factor
    grad_k = of_scores.transpose(-2, -1) @ q.float() * factor
    found = (grad_q, grad_k, grad_v, of_scores)
    return found[0].to(q.dtype), found[1].to(q.dtype), found[2].to(q.dtype), found[3].to(q.dtype)


def _number() -> torch.Tensor:
    """What a kernel returns beside what is used here."""
    return torch.zeros((), dtype=torch.int64)


def _efficient(
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
) -> tuple[Any, ...]:
    del compute_log_sumexp
    out, total, seed = _forward(gpu, (q, k, v), bias, dropout_p, is_causal, scale, 0)
    return out, total, seed, _number()


def _efficient_backward(
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
    *found, scores = _backward(grad, (q, k, v), bias, seed, dropout_p, is_causal, scale)
    return *found, scores if bias is not None and grad_input_mask[3] else None


def _flash(
    gpu: ImitatedGpu,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    del return_debug_mask
    out, total, seed = _forward(gpu, (q, k, v), None, dropout_p, is_causal, scale, 1)
    longest = q.shape[-2], k.shape[-2]
    return out, total, _number(), _number(), *longest, seed, _number(), _number()


def _flash_backward(
    gpu: ImitatedGpu,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    seed: torch.Tensor,
    offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    del gpu, out, total, cum_seq_q, cum_seq_k, max_q, max_k, offset
    return _backward(grad, (q, k, v), None, seed, dropout_p, is_causal, scale)[:3]


def _cudnn(
    gpu: ImitatedGpu,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    del compute_log_sumexp, return_debug_mask
    out, total, seed = _forward(gpu, (q, k, v), bias, dropout_p, is_causal, scale, 2)
    longest = q.shape[-2], k.shape[-2]
    return out, total, _number(), _number(), *longest, seed, _number(), _number()


def _cudnn_backward(
    gpu: ImitatedGpu,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    del gpu, out, total, offset, cum_seq_q, cum_seq_k, max_q, max_k
    return _backward(grad, (q, k, v), bias, seed, dropout_p, is_causal, scale)[:3]


ATTENTION_KERNELS: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_efficient_attention.default: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten._scaled_dot_product_flash_attention.default: _flash,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_cudnn_attention.default: _cudnn,
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
}
