"""The contexts around a call of the script, in which its measurement must run too.

A script often enters autocast, or chooses kernels of attention and their order, around the module's
call. A later run of the call is made after these contexts are left.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
}
# Torch's initial order, and the order to which its first call on some GPUs changes that.
_OWN_ORDER = tuple(_KERNELS)
_ORDER_WITH_CUDNN = (SDPBackend.CUDNN_ATTENTION, *_OWN_ORDER[:3])
_CAPABILITIES_WITH_CUDNN = ((9, 0), (10, 0))


def all_kernels_enabled() -> bool:
    return all(enabled() for enabled in _KERNELS.values())


def enabled_kernels() -> tuple[SDPBackend, ...]:
    """Returns the enabled kernels. The first one is tried first."""
    return tuple(kernel for kernel in _kernel_order() if _KERNELS[kernel]())


def order_is_chosen() -> bool:
    """Returns whether the script chose the order (`sdpa_kernel(..., set_priority=True)`).

    Some versions of torch do not report that. There, an order counts as chosen if torch would not
    have it by itself.
    """
    active: Callable[[], bool] | None = getattr(attention, "_is_sdp_priority_order_active", None)
    if active is not None:
        return active()
    order = _kernel_order()
    if order == _ORDER_WITH_CUDNN:
        return not _prefers_cudnn()
    return order != _OWN_ORDER


def _kernel_order() -> tuple[SDPBackend, ...]:
    own: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    ask = getattr(own, "_get_sdp_priority_order", None)
    numbers: list[int] = ask() if ask is not None else []
    # torch 2.8 lists one kernel twice.
    known = dict.fromkeys(kernel for kernel in map(SDPBackend, numbers) if kernel in _KERNELS)
    order = tuple(known)
    return order if len(order) == len(_OWN_ORDER) else _OWN_ORDER


def _prefers_cudnn() -> bool:
    initialized = torch.cuda.is_initialized()
    return initialized and torch.cuda.get_device_capability() in _CAPABILITIES_WITH_CUDNN


@dataclass(frozen=True, slots=True)
class GradMode:
    """Whether autograd records operations, and whether they run in inference mode."""

    records: bool
    inference: bool

    @classmethod
    def now(cls) -> "GradMode":
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    @contextmanager
    def entered(self) -> Generator[None]:
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.records):
            yield


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The autocast of a device type, and the kernels that attention may use, in their order."""

    device_type: str
    autocast: bool
    dtype: torch.dtype
    caches: bool
    kernels: tuple[SDPBackend, ...]
    # False if torch's own order applies. Torch may change that in the first call on a GPU.
    ordered: bool

    @classmethod
    def now(cls, device_type: str) -> "Surroundings":
        return cls(
            device_type,
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
            enabled_kernels(),
            order_is_chosen(),
        )

    @contextmanager
    def entered(self) -> Generator[None]:
        """Enters the contexts of the script's call, except those that already apply."""
        now = Surroundings.now(self.device_type)
        with ExitStack() as stack:
            if self._has_other_kernels(now):
                kernels = list(self.kernels)
                stack.enter_context(sdpa_kernel(kernels, set_priority=self.ordered))
            if (self.autocast, self.dtype, self.caches) != (now.autocast, now.dtype, now.caches):
                stack.enter_context(
                    torch.autocast(
                        self.device_type,
                        dtype=self.dtype,
                        enabled=self.autocast,
                        cache_enabled=self.caches,
                    )
                )
            yield

    def _has_other_kernels(self, now: "Surroundings") -> bool:
        if self.ordered:
            return self.kernels != now.kernels or not now.ordered
        return set(self.kernels) != set(now.kernels)
