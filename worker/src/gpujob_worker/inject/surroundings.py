"""The contexts around a call of the script, in which its measurement must run too.

A script often enters autocast, or chooses kernels of attention, around the module's call. A later
run of the call is made after these contexts are left.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpujob_worker.inject.attention_order import enabled_kernels, order_is_chosen


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
