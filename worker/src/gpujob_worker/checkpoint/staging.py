"""A copy of a state in host memory, so that training continues while it is written.

The memory is allocated once, and a thread touches it beforehand, because fresh pages cost ten times
the copy. It is shared with no child, and counts as shared memory of the process.
"""

import contextlib
import mmap
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from gpujob_worker.checkpoint.host_memory import available_bytes
from gpujob_worker.checkpoint.tensor_file import data_bytes, in_file_order

# Maximum share of the free memory for a staging copy. Loaders and caches need the rest.
SHARE_MAX = 0.5
# States grow a little: counters, learning rates, the loader's place.
HEADROOM = 1.05
_PAGE_BYTES = mmap.PAGESIZE
_TOUCH_BYTES = 16 << 20
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context


class NoRoomError(Exception):
    """A staging copy does not fit into the free host memory."""


class StagingBuffer:
    """One block for one state. Only one thread may use it at a time, except for `prepare`."""

    def __init__(self, available: Callable[[], int | None] = available_bytes) -> None:
        self._available = available
        self._block: torch.Tensor | None = None
        # The views of the block for the last state, and that state's layout.
        self._views: dict[str, torch.Tensor] = {}
        self._layout: list[tuple[str, torch.dtype, torch.Size]] = []
        self._pinned = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self._block is None else self._block.numel()

    def refusal(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
        """Returns why the tensors cannot be copied here, or None."""
        needed = int(data_bytes(tensors) * HEADROOM)
        more = needed - self.size_bytes
        if more <= 0:
            return None
        free = self._available()
        if free is None or more <= free * SHARE_MAX:
            return None
        return f"a copy of {needed} bytes takes more than half of the {free} bytes of host memory"

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocates and touches the memory in the background, before it is needed."""
        if self._thread is None and self.refusal(tensors) is None:
            pin = any(tensor.is_cuda for tensor in tensors.values())
            size = int(data_bytes(tensors) * HEADROOM)
            self._thread = threading.Thread(
                target=self._grow, args=(size, pin), name="gpujob-staging", daemon=True
            )
            self._thread.start()

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns copies that do not change until the next call. Raises `NoRoomError`."""
        refusal = self.refusal(tensors)
        if refusal is not None:
            raise NoRoomError(refusal)
        pin = any(tensor.is_cuda for tensor in tensors.values())
        size = data_bytes(tensors)
        if size > self.size_bytes:
            self._grow(int(size * HEADROOM), pin)
        views = self._views_for(tensors)
        for name, tensor in tensors.items():
            views[name].copy_(tensor, non_blocking=self._pinned > 0)
        if pin:
            torch.cuda.synchronize()
        return views

    def release(self) -> None:
        """Frees the memory. Its views must be gone."""
        with self._lock:
            self._unpin()
            self._block, self._views = None, {}
            self._thread = None

    def _views_for(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the views of the last time if the tensors have the same layout."""
        layout = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        if layout != self._layout or not self._views:
            self._layout, self._views, start = layout, {}, 0
            for name, tensor in in_file_order(tensors).items():
                self._views[name] = self._view(start, tensor)
                start += tensor.numel() * tensor.element_size()
        return dict(self._views)

    def _view(self, start: int, tensor: torch.Tensor) -> torch.Tensor:
        assert self._block is not None
        size = tensor.numel() * tensor.element_size()
        if not size:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        return self._block[start : start + size].view(tensor.dtype).view(tensor.shape)

    def _grow(self, size: int, pin: bool) -> None:
        with self._lock:
            if size <= self.size_bytes:
                return
            self._unpin()
            self._block, self._views = None, {}
            block = _touched(max(size, _PAGE_BYTES))
            if pin:
                self._pinned = _pin(block)
            self._block = block

    def _unpin(self) -> None:
        pinned, self._pinned = self._pinned, 0
        if pinned:
            with contextlib.suppress(Exception):
                runtime: Any = torch.cuda.cudart()
                runtime.cudaHostUnregister(pinned)


def _touched(size: int) -> torch.Tensor:
    mapping = mmap.mmap(-1, size)
    with contextlib.suppress(OSError, AttributeError):
        # A loader's process would hold it too otherwise, and pinned memory must not be shared.
        mapping.madvise(mmap.MADV_DONTFORK)
    pages = np.frombuffer(mapping, dtype=np.uint8)
    for start in range(0, size, _TOUCH_BYTES):
        pages[start : start + _TOUCH_BYTES : _PAGE_BYTES] = 0
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _pin(block: torch.Tensor) -> int:
    """Returns the address of the pinned memory, or 0. Copies then wait for each tensor."""
    try:
        runtime: Any = torch.cuda.cudart()
        failed = int(runtime.cudaHostRegister(block.data_ptr(), block.numel(), _PORTABLE))
    except Exception:
        return 0
    return 0 if failed else block.data_ptr()
