"""What the process holds on its device: peaks and present use, on CUDA and on a CPU card.

On the CPU the device memory of a process is its anonymous and shared memory (RssAnon + RssShmem);
file pages such as libraries do not count, as on a card.
"""

import contextlib
import ctypes
import re
from pathlib import Path
from typing import Any, Protocol

_STATUS = Path("/proc/self/status")
_STATUS_FIELDS = re.compile(rb"^(RssAnon|RssFile|RssShmem|VmHWM):\s+(\d+)", re.MULTILINE)
_CLEAR_REFS = Path("/proc/self/clear_refs")


class DeviceMemory(Protocol):
    """Memory of this process on its device, in bytes."""

    def current_bytes(self) -> int: ...
    def peak_bytes(self) -> int: ...
    def allocated_peak_bytes(self) -> int: ...
    def reset_peak(self) -> None: ...
    def trim(self) -> None: ...


class CpuMemory:
    """RssAnon + RssShmem from /proc; the peak from VmHWM, which the kernel lets us reset."""

    def __init__(self) -> None:
        self._resettable = True
        self._peak = 0

    def current_bytes(self) -> int:
        fields = _status_bytes()
        now = fields.get("RssAnon", 0) + fields.get("RssShmem", 0)
        self._peak = max(self._peak, now)
        return now

    def peak_bytes(self) -> int:
        fields = _status_bytes()
        now = fields.get("RssAnon", 0) + fields.get("RssShmem", 0)
        high = fields.get("VmHWM", 0) - fields.get("RssFile", 0) if self._resettable else 0
        self._peak = max(self._peak, now)
        return max(high, self._peak)

    def allocated_peak_bytes(self) -> int:
        return self.peak_bytes()

    def reset_peak(self) -> None:
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:
            self._resettable = False
        self._peak = 0

    def trim(self) -> None:
        """Gives freed heap pages back, so that a smaller need is also seen from outside."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


class CudaMemory:
    """The caching allocator's reserved bytes plus what the context itself was seen to take."""

    def __init__(self, cuda: Any, context_bytes: int = 0) -> None:
        self._cuda = cuda
        self.context_bytes = context_bytes

    def current_bytes(self) -> int:
        return int(self._cuda.memory_reserved()) + self.context_bytes

    def peak_bytes(self) -> int:
        return int(self._cuda.max_memory_reserved()) + self.context_bytes

    def allocated_peak_bytes(self) -> int:
        """Without the cached blocks, which stay reserved from the larger part of a step."""
        return int(self._cuda.max_memory_allocated()) + self.context_bytes

    def reset_peak(self) -> None:
        self._cuda.reset_peak_memory_stats()

    def trim(self) -> None:
        self._cuda.empty_cache()


def device_memory(device_type: str) -> DeviceMemory:
    if device_type == "cuda":
        import torch

        return CudaMemory(torch.cuda)
    return CpuMemory()


def _status_bytes() -> dict[str, int]:
    """Read several times a second beside the training: no text layer, no walk over 60 lines."""
    with open(_STATUS, "rb", buffering=0) as file:
        text = file.read()
    found = _STATUS_FIELDS.findall(text)
    return {name.decode(): int(kibibytes) * 1024 for name, kibibytes in found}
