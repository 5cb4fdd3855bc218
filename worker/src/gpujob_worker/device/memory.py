"""Memory that the process holds on its device, peak and present, on CUDA and on a CPU card.

On the CPU, the device memory of a process is its anonymous and shared memory (RssAnon + RssShmem).
File pages such as libraries do not count, as on a GPU.
"""

import contextlib
import ctypes
import re
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from gpujob_worker.device.cuda_context import CONTEXT_BYTES_ASSUMED, Context

_STATUS = Path("/proc/self/status")
_STATUS_FIELDS = re.compile(rb"^(RssAnon|RssFile|RssShmem|VmHWM):\s+(\d+)", re.MULTILINE)
_CLEAR_REFS = Path("/proc/self/clear_refs")
# Constants of malloc.h. By default glibc raises the second threshold up to its maximum, and the
# first to twice that.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_THRESHOLD_MAX_BYTES = 32 * 1024**2
LARGE_BLOCK_BYTES = 1024**2
# While memory is measured, this applies to smaller blocks too. Freed blocks on the heap are rarely
# reused, because torch requests aligned ones. A step of few rows then seemed to take up to twice
# its memory.
MEASURED_BLOCK_BYTES = 128 * 1024


class DeviceMemory(Protocol):
    """Memory of this process on its device, in bytes."""

    def current_bytes(self) -> int: ...
    def allocated_bytes(self) -> int: ...
    def peak_bytes(self) -> int: ...
    def allocated_peak_bytes(self) -> int: ...
    def reset_peak(self) -> None: ...
    def trim(self) -> None: ...
    def give_back_early(self, early: bool) -> bool: ...
    def exact(self) -> AbstractContextManager[None]: ...


class CpuMemory:
    """RssAnon + RssShmem from /proc. The peak is VmHWM, which the kernel allows to reset."""

    def __init__(self) -> None:
        self._resettable = True
        self._peak = 0
        self._early = False

    def current_bytes(self) -> int:
        fields = _status_bytes()
        now = fields.get("RssAnon", 0) + fields.get("RssShmem", 0)
        self._peak = max(self._peak, now)
        return now

    def allocated_bytes(self) -> int:
        return self.current_bytes()

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
        """Returns freed heap pages to the system, so that lower use is visible from outside."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def give_back_early(self, early: bool) -> bool:
        """Returns large blocks to the system when they are freed, and not only when the heap's end
        is free.

        That costs kernel time for new pages, so it is only used if a limit is near. Returns False
        if nothing changes.
        """
        if early == self._early:
            return False
        self._early = early
        self._set_thresholds()
        return True

    @contextlib.contextmanager
    def exact(self) -> Generator[None]:
        """Excludes freed memory from measurements inside, including small blocks."""
        _set_thresholds(MEASURED_BLOCK_BYTES, MEASURED_BLOCK_BYTES)
        try:
            yield
        finally:
            self._set_thresholds()

    def _set_thresholds(self) -> None:
        if self._early:
            _set_thresholds(LARGE_BLOCK_BYTES, LARGE_BLOCK_BYTES)
        else:
            _set_thresholds(_THRESHOLD_MAX_BYTES, 2 * _THRESHOLD_MAX_BYTES)


class CudaMemory:
    """The caching allocator's reserved bytes plus the process's other memory on the GPU."""

    def __init__(self, cuda: Any, context: Context | None = None) -> None:
        self._cuda = cuda
        self._context = context
        self._measured = False
        self.context_bytes = CONTEXT_BYTES_ASSUMED
        self.measure_context()

    def measure_context(self) -> int:
        """Reads the process's other memory again, because it grows with use."""
        reserved = int(self._cuda.memory_reserved())
        found = self._context.beside_bytes(reserved) if self._context is not None else None
        if found is not None:
            before = self.context_bytes if self._measured else 0
            self.context_bytes, self._measured = max(before, found), True
        return self.context_bytes

    def current_bytes(self) -> int:
        return int(self._cuda.memory_reserved()) + self.context_bytes

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated()) + self.context_bytes

    def peak_bytes(self) -> int:
        return int(self._cuda.max_memory_reserved()) + self.context_bytes

    def allocated_peak_bytes(self) -> int:
        """Returns the peak without cached blocks, which stay reserved from the larger part of a
        step.
        """
        return int(self._cuda.max_memory_allocated()) + self.context_bytes

    def reset_peak(self) -> None:
        self._cuda.reset_peak_memory_stats()

    def trim(self) -> None:
        self._cuda.empty_cache()

    def give_back_early(self, early: bool) -> bool:
        """Does nothing. Cached blocks count, but the allocator frees them itself before
        it fails.
        """
        del early
        return False

    def exact(self) -> AbstractContextManager[None]:
        """Does nothing, because allocated memory is counted too."""
        return contextlib.nullcontext()


class Growth:
    """Memory taken since a moment, in bytes. Blocks that are only cached are returned first.

    On a GPU it is the larger of reserved and allocated memory. An allocation that fits into
    reserved memory would not show otherwise, and one that is rounded up takes more than requested.
    Resets the peak that `memory` counts.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        memory.trim()
        self._start = memory.current_bytes()
        self._allocated = memory.allocated_bytes()
        memory.reset_peak()

    def held_bytes(self) -> int:
        """Returns the memory above that of the start. It is negative if there is less."""
        memory = self._memory
        memory.trim()
        reserved = memory.current_bytes() - self._start
        return max(reserved, memory.allocated_bytes() - self._allocated)

    def peak_bytes(self) -> int:
        memory = self._memory
        reserved = memory.peak_bytes() - self._start
        return max(0, reserved, memory.allocated_peak_bytes() - self._allocated)


def _set_thresholds(mmap_bytes: int, trim_bytes: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, mmap_bytes)
        library.mallopt(_M_TRIM_THRESHOLD, trim_bytes)


def _status_bytes() -> dict[str, int]:
    """Reads the status fields. It runs several times a second during training, so it avoids a text
    layer and a walk over 60 lines.
    """
    with open(_STATUS, "rb", buffering=0) as file:
        text = file.read()
    found = _STATUS_FIELDS.findall(text)
    return {name.decode(): int(kibibytes) * 1024 for name, kibibytes in found}
