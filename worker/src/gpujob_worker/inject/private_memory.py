"""Moves the tensors of a batch that came from another process into memory of this process."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH_MAX = 6


def make_private(batch: Any) -> Any:
    """Copies shared memory, in place: tensors that overlap still do. A script may keep every batch,
    and each in shared memory would hold a descriptor and a part of /dev/shm.
    """
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors(batch, 0, set()):
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            continue
        storage = tensor.untyped_storage()
        if not storage.is_shared():
            continue
        copy = copies.get(storage.data_ptr())
        if copy is None:
            copy = copies[storage.data_ptr()] = storage.clone()
        with torch.no_grad():
            tensor.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())
    return batch


def _tensors(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, (str, bytes, int, float, type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH_MAX:
        inside: Any = ()
        if isinstance(value, Mapping):
            inside = value.values()
        elif isinstance(value, (list, tuple, set)):
            inside = value
        own: Any = getattr(value, "__dict__", None)
        for one in (*inside, *(own.values() if isinstance(own, dict) else ())):
            yield from _tensors(one, depth + 1, seen)
