"""The attention kernels that torch may use now, in the order in which it tries them."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend

_KERNELS = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
}
# Torch's initial order, and the order to which its first call on some GPUs changes that.
_OWN = tuple(_KERNELS)
_OWN_WITH_CUDNN = (SDPBackend.CUDNN_ATTENTION, *_OWN[:3])
_CAPABILITIES_WITH_CUDNN = ((9, 0), (10, 0))


def all_kernels_enabled() -> bool:
    return all(enabled() for enabled in _KERNELS.values())


def enabled_kernels() -> tuple[SDPBackend, ...]:
    """Returns the enabled kernels. The first one is tried first."""
    return tuple(kernel for kernel in _order() if _KERNELS[kernel]())


def order_is_chosen() -> bool:
    """Returns whether the script chose the order (`sdpa_kernel(..., set_priority=True)`).

    Some versions of torch do not report that. There, an order counts as chosen if torch would not
    have it by itself.
    """
    active: Callable[[], bool] | None = getattr(attention, "_is_sdp_priority_order_active", None)
    if active is not None:
        return active()
    order = _order()
    if order == _OWN_WITH_CUDNN:
        return not _prefers_cudnn()
    return order != _OWN


def _order() -> tuple[SDPBackend, ...]:
    own: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    ask = getattr(own, "_get_sdp_priority_order", None)
    numbers: list[int] = ask() if ask is not None else []
    # torch 2.8 lists one kernel twice.
    known = dict.fromkeys(kernel for kernel in map(SDPBackend, numbers) if kernel in _KERNELS)
    order = tuple(known)
    return order if len(order) == len(_OWN) else _OWN


def _prefers_cudnn() -> bool:
    initialized = torch.cuda.is_initialized()
    return initialized and torch.cuda.get_device_capability() in _CAPABILITIES_WITH_CUDNN
