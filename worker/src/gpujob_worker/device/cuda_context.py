"""Memory of a process on its GPU outside torch: the CUDA context, libraries, loaded kernels.

NVML and every measurement from outside count this memory, but torch's counters do not. It grows
while a process runs, because kernels are loaded on first use.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gpujob_worker.device.nvml import nvml_device

# Assumed if NVML does not report it. Contexts reportedly take 0.3 to 0.6 GB.
CONTEXT_BYTES_ASSUMED = 512 * 1024**2
# More than this outside torch's memory belongs to another process.
CONTEXT_BYTES_MAX = 4 * 1024**3
_PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


class Context(Protocol):
    """Reports the memory of the process outside torch's reserved memory."""

    def beside_bytes(self, reserved_bytes: int) -> int | None: ...


class GPUContext:
    """The process's memory on one GPU according to NVML."""

    def __init__(self, nvml: Any, handle: Any, pid: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._pid = os.getpid() if pid is None else pid

    def beside_bytes(self, reserved_bytes: int) -> int | None:
        """Returns the bytes in addition to `reserved_bytes`, or None if NVML reports no memory by
        process.

        In a container NVML lists the process under another PID. Then a process that holds torch's
        reserved memory and not much more is taken for this one, if it is the only such process.
        """
        used = self._used_by_process()
        if self._pid in used:
            return max(0, used[self._pid] - reserved_bytes)
        beside = [amount - reserved_bytes for amount in used.values()]
        ours = [amount for amount in beside if 0 <= amount <= CONTEXT_BYTES_MAX]
        return ours[0] if len(ours) == 1 else None

    def _used_by_process(self) -> dict[int, int]:
        used: dict[int, int] = {}
        for name in _PROCESS_LISTS:
            for process in self._processes(name):
                if process.usedGpuMemory is not None:
                    amount = int(process.usedGpuMemory)
                    used[int(process.pid)] = max(amount, used.get(int(process.pid), 0))
        return used

    def _processes(self, name: str) -> Iterable[Any]:
        with contextlib.suppress(Exception):
            return getattr(self._nvml, name)(self._handle)
        return ()


def gpu_context(uuid: str) -> GPUContext | None:
    """Returns the context on a GPU by its UUID from CUDA, or None without NVML."""
    try:
        return GPUContext(*nvml_device(uuid))
    except Exception:
        return None


def limit_allocator(cuda: Any, limit_bytes: int, context_bytes: Callable[[], int]) -> None:
    """Makes torch's allocator fail if the whole process, including its context, would exceed the
    limit.
    """
    device = cuda.current_device()
    total = cuda.get_device_properties(device).total_memory
    left = max(0, limit_bytes - context_bytes())
    cuda.set_per_process_memory_fraction(min(1.0, left / total), device)
