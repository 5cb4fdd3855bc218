"""The weights of modules, moved to the memory of the host and back.

Storages are emptied and filled again, as in FSDP. The tensors stay, so tied parameters move once,
and views, wrapped tensors (quantized weights) and compiled code remain valid.

On a CPU card the memory of the process stands for that of a GPU. The weights leave it, too: to a
file in memory that the process does not map.
"""

import ctypes
import os
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils import _python_dispatch

# Pinned memory is rounded up to a power of two, so large weights are copied in parts of this size.
PART_BYTES = 32 * 1024**2


class Weights:
    """The parameters and buffers of modules, on a GPU if any of them is."""

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = modules
        self._parked: tuple[_Host, list[tuple[torch.UntypedStorage, int]]] | None = None

    @property
    def host_bytes(self) -> int:
        return sum(_rounded(len(part)) for one in self._storages() for part in _parts(one))

    def park(self) -> None:
        storages = self._storages()
        host: _Host = _Pinned() if any(one.device.type == "cuda" for one in storages) else _File()
        for storage in storages:
            for part in _parts(storage):
                host.keep(part)
        _synchronize(storages)
        self._parked = host, [(storage, storage.nbytes()) for storage in storages]
        self._empty()

    def wake(self) -> None:
        if self._parked is None:
            return
        host, storages = self._parked
        host.rewind()
        try:
            for storage, size in storages:
                storage.resize_(size)
                for part in _parts(storage):
                    host.restore(part)
            _synchronize([storage for storage, _ in storages])
        except BaseException:
            self._empty()
            raise
        self._parked = None
        host.close()

    def _empty(self) -> None:
        assert self._parked is not None
        for storage, _ in self._parked[1]:
            storage.resize_(0)

    def _storages(self) -> list[torch.UntypedStorage]:
        """Returns each storage once, without those that cannot be resized, such as mapped files."""
        tensors = (
            plain
            for module in self._modules
            for found in (module.parameters(), module.buffers())
            for tensor in found
            for plain in _plain(tensor)
        )
        storages = {one.data_ptr(): one for one in (t.untyped_storage() for t in tensors)}
        found = [one for one in storages.values() if one.nbytes() and _moves(one)]
        on_gpu = [one for one in found if one.device.type == "cuda"]
        return on_gpu or [one for one in found if one.device.type == "cpu"]


class _Host(Protocol):
    """Keeps bytes, and restores them in the same order. Copies may end after the calls return."""

    def keep(self, part: torch.Tensor) -> None: ...
    def rewind(self) -> None: ...
    def restore(self, part: torch.Tensor) -> None: ...
    def close(self) -> None: ...


class _Pinned:
    """Pinned memory, which a GPU copies at the speed of its bus."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []

    def keep(self, part: torch.Tensor) -> None:
        held = torch.empty(len(part), dtype=torch.uint8, pin_memory=True)
        self._parts.append(held.copy_(part, non_blocking=True))

    def rewind(self) -> None:
        self._next = iter(self._parts)

    def restore(self, part: torch.Tensor) -> None:
        part.copy_(next(self._next), non_blocking=True)

    def close(self) -> None:
        self._parts.clear()
        # torch keeps freed pinned memory for later. It counts towards the container's limit.
        release: Any = getattr(torch._C, "_host_emptyCache", None)  # pyright: ignore[reportPrivateUsage]
        if release is not None:
            release()


class _File:
    """A file in memory."""

    def __init__(self) -> None:
        self._file = open(os.memfd_create("gpujob-parked"), "w+b")  # noqa: SIM115 - see `close`
        # A process may end while it is parked.
        weakref.finalize(self, self._file.close)

    def keep(self, part: torch.Tensor) -> None:
        self._file.write(_buffer(part))

    def rewind(self) -> None:
        self._file.seek(0)

    def restore(self, part: torch.Tensor) -> None:
        self._file.readinto(_buffer(part))

    def close(self) -> None:
        self._file.close()


def _buffer(part: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """Returns the memory of a tensor. NumPy's view of it would keep the storage from resizing."""
    return (ctypes.c_char * len(part)).from_address(part.data_ptr())


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensors with memory of their own of which a tensor consists."""
    if _python_dispatch.is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _plain(getattr(tensor, name))
    elif tensor.layout is torch.strided and not tensor.is_meta:
        yield tensor


def _parts(storage: torch.UntypedStorage) -> tuple[torch.Tensor, ...]:
    """Returns views of a storage's bytes."""
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return whole.split(PART_BYTES)


def _moves(storage: torch.UntypedStorage) -> bool:
    """Returns whether a storage can be emptied. One that other processes may read cannot
    (`share_memory`). That call does nothing on a GPU, of which each storage counts as shared.
    """
    is_own = storage.device.type == "cuda" or not storage.is_shared()
    return storage.resizable() and is_own


def _rounded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _synchronize(storages: list[torch.UntypedStorage]) -> None:
    for device in {one.device for one in storages if one.device.type == "cuda"}:
        torch.cuda.synchronize(device)
