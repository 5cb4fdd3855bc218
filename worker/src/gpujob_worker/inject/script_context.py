"""The contexts of the script around a call of its model: a try is judged in the same ones."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.attention import (
    SDPBackend,
    _cur_sdpa_kernel_backends,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
    sdpa_kernel,
)


@dataclass(frozen=True, slots=True)
class ScriptContext:
    """Autocast and the kernels of attention, as they were at one moment.

    Gradients are not part of it: a call that is recorded has them.
    """

    device_type: str
    autocast: torch.dtype | None
    cache: bool
    attention: tuple[SDPBackend, ...]

    @classmethod
    def now(cls, device_type: str) -> "ScriptContext":
        enabled = torch.is_autocast_enabled(device_type)
        return cls(
            device_type,
            torch.get_autocast_dtype(device_type) if enabled else None,
            torch.is_autocast_cache_enabled(),
            tuple(_cur_sdpa_kernel_backends(with_priority=True)),
        )

    @contextmanager
    def entered(self) -> Generator[None]:
        """Also outside of `inference_mode`, in which a script may step its optimizer."""
        autocast = torch.autocast(
            self.device_type,
            dtype=self.autocast,
            enabled=self.autocast is not None,
            cache_enabled=self.cache,
        )
        kernels = sdpa_kernel(list(self.attention), set_priority=True)
        with torch.inference_mode(mode=False), kernels, autocast:
            yield
