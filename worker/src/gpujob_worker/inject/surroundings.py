"""The contexts around a call of the script: what a measurement of the call must be made in too.

A script often enters autocast, or chooses kernels of attention, around the module's call. A later
run of the call is made when these contexts are left.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Autocast of a type of device, and the kernels that attention may use."""

    device_type: str
    autocast: bool
    dtype: torch.dtype
    caches: bool
    kernels: tuple[SDPBackend, ...]

    @classmethod
    def now(cls, device_type: str) -> "Surroundings":
        return cls(
            device_type,
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
            tuple(kernel for kernel, enabled in _KERNELS.items() if enabled()),
        )

    @contextmanager
    def entered(self) -> Generator[None]:
        """As around the script's call; what is so already is left alone."""
        now = Surroundings.now(self.device_type)
        with ExitStack() as stack:
            if self.kernels != now.kernels:
                stack.enter_context(sdpa_kernel(list(self.kernels)))
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
