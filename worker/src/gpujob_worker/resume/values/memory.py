"""Memories of tensors and arrays: their keys, their hashes, and those that were read."""

import marshal
from typing import Any

import numpy as np
import torch
import xxhash


def address_key(address: int, size: int, device: str) -> int:
    return hash((address, size, device))


def storage_key_of(storage: Any, device: torch.device) -> int:
    return address_key(storage.data_ptr(), storage.nbytes(), str(device))


def storage_key(tensor: torch.Tensor) -> int:
    """Returns the key of a tensor's memory, if that is not empty."""
    return storage_key_of(tensor.untyped_storage(), tensor.device)


def digest_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).view(np.uint8).data)


def plain_digest(value: Any) -> str | None:
    """Returns a digest of containers of plain values. None for others, and for sets, which have no
    order.
    """
    try:
        # Version 2 writes shared values once per occurrence, so equal values have equal bytes.
        return xxhash.xxh3_128_hexdigest(marshal.dumps(value, 2))
    except ValueError:
        return None


class ReadMemories:
    """The memories that were read, with the indices of their nodes.

    Their bytes are tensors or arrays.
    """

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}
        # Where memories of the CPU begin and end, with their indices.
        self._spans: list[tuple[int, int, int]] = []

    def index_of(self, key: int, content: Any) -> int | None:
        """Returns the index of a memory's node, or None. An empty memory is shared by none."""
        return self._indices.get(key) if len(content) else None

    def add(self, key: int, content: Any, index: int) -> None:
        self._indices[key] = index
        on_device = isinstance(content, torch.Tensor) and content.device.type != "cpu"
        if len(content) and not on_device:
            start = content.ctypes.data if isinstance(content, np.ndarray) else content.data_ptr()
            self._spans.append((start, start + len(content), index))

    def forget(self, known: int) -> None:
        """Drops the memories of all nodes except the first `known` ones."""
        self._indices = {key: index for key, index in self._indices.items() if index < known}
        self._spans = [span for span in self._spans if span[2] < known]

    def overlaps(self) -> list[tuple[int, int, int]]:
        """Returns overlapping memories, such as that of `torch.from_numpy(array[3:])`.

        Each entry has both, and the bytes from the beginning of the first to that of the second.
        """
        found: list[tuple[int, int, int]] = []
        widest = (0, 0, 0)
        for span in sorted(self._spans):
            if span[0] < widest[1]:
                found.append((widest[2], span[2], span[0] - widest[0]))
            if span[1] > widest[1]:
                widest = span
        return found
