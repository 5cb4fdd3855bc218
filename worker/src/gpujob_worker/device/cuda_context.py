"""What a process takes on its GPU beyond torch's own: the CUDA context, libraries, loaded kernels.

The GPU counts it, and so does whoever measures from outside; torch's counters do not know of it.
It grows while a process runs, because kernels are loaded when they are first used.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gpujob_worker.device.nvml import nvml_device

# Where the GPU does not tell. An assumption: contexts are said to take 0.3 to 0.6 GB.
CONTEXT_BYTES_ASSUMED = 512 * 1024**2
# More than this beside torch's own memory is another process's.
CONTEXT_BYTES_MAX = 4 * 1024**3
_PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


class Context(Protocol):
    """Tells what the process takes beside what torch reserved."""

    def beside_bytes(self, reserved_bytes: int) -> int | None: ...


class GPUContext:
    """As NVML sees this process on one GPU."""

    def __init__(self, nvml: Any, handle: Any, pid: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._pid = os.getpid() if pid is None else pid

    def beside_bytes(self, reserved_bytes: int) -> int | None:
        """Bytes beside `reserved_bytes`; None where the GPU does not tell whose is what.

        In a container the GPU knows the process by another number. Then it is the only one that
        could be ours: one that holds what torch reserved and not much more.
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
    """The context on a GPU by its UUID as CUDA gives it; None without NVML."""
    try:
        return GPUContext(*nvml_device(uuid))
    except Exception:
        return None


def limit_allocator(cuda: Any, limit_bytes: int, context_bytes: Callable[[], int]) -> None:
    """Lets torch's allocator fail where the whole process, context included, would overstep."""
    device = cuda.current_device()
    total = cuda.get_device_properties(device).total_memory
    left = max(0, limit_bytes - context_bytes())
    cuda.set_per_process_memory_fraction(min(1.0, left / total), device)
