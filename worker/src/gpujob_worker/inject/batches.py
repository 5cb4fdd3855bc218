"""Batches of a loader: whether two hold the same bits, and how one of another process is made
private."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH_MAX = 6


def equal_batches(one: Any, other: Any, depth: int = 0) -> bool:
    """Returns False only if a difference was found. Objects of unknown types are not compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _equal_tensors(one, other)
    if isinstance(one, (str, bytes, int, bool, type(None))):
        return bool(one == other)
    if isinstance(one, float):
        return one.hex() == other.hex()
    if depth >= _DEPTH_MAX:
        return True
    if isinstance(one, Mapping):
        same_keys = list(one) == list(other)
        return same_keys and all(equal_batches(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(equal_batches(a, b, depth + 1) for a, b in pairs)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one) == _bits(other)
    inside, of_other = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
    return inside is None or of_other is None or equal_batches(inside, of_other, depth + 1)


def _bits(array: Any) -> Any:
    return array.tolist() if array.dtype.hasobject else array.tobytes()


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return True
    flat, of_other = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if not flat.numel():
        return True
    return torch.equal(flat.view(torch.uint8), of_other.view(torch.uint8))


def make_private(batch: Any) -> Any:
    """Copies shared memory in place. Tensors that overlap still do.

    A script may keep every batch, and each batch in shared memory would hold a descriptor and a
    part of /dev/shm.
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
