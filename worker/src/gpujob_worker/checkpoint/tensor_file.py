"""Writes named tensors as a safetensors file straight from their memory, and hashes them meanwhile.

Only tensors that are on a device or have gaps are copied, one at a time. Writing and hashing
release the interpreter for other threads.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash

from gpujob_worker.checkpoint.errors import UnsavableError

PIECE_BYTES = 16 << 20
_HEADER_ALIGNMENT = 8
# Names of the format. The order in the file is by size, so that every tensor is aligned.
_TYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def savable_tensor(tensor: torch.Tensor) -> bool:
    """Returns whether the format has a name for the tensor's type, and supports its layout."""
    return tensor.dtype in _TYPES and tensor.layout is torch.strided


def data_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def in_file_order(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors with large elements first. Without gaps, each begins at a multiple of its
    element.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    return {name: tensors[name] for name in names}


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], wrote: Callable[[int], None]
) -> dict[str, Any]:
    """Writes the file durably, and returns its size and hash in the form of a manifest.

    `wrote(bytes)` is called after each piece and may raise to give up.
    """
    ordered = in_file_order(tensors)
    digest, size = xxhash.xxh3_128(), 0
    with path.open("wb", buffering=0) as stream:
        for piece in _pieces(ordered):
            digest.update(piece)
            _write_all(stream.fileno(), piece)
            size += len(piece)
            wrote(len(piece))
        os.fsync(stream.fileno())
    return {"bytes": size, "xxh3": digest.hexdigest()}


def _write_all(descriptor: int, data: "bytes | memoryview") -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _pieces(ordered: Mapping[str, torch.Tensor]) -> Iterator["bytes | memoryview"]:
    """Yields the header, then the data. Small tensors are joined."""
    small = bytearray(_header(ordered))
    for tensor in ordered.values():
        data = _memory(tensor)
        if len(data) < PIECE_BYTES // 4:
            small += data
            if len(small) >= PIECE_BYTES:
                yield bytes(small)
                small.clear()
            continue
        if small:
            yield bytes(small)
            small.clear()
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
    if small:
        yield bytes(small)


def _header(ordered: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, Any] = {}
    start = 0
    for name, tensor in ordered.items():
        if not savable_tensor(tensor):
            raise UnsavableError(f"a tensor of {tensor.dtype} in {tensor.layout} cannot be saved")
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _memory(tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's bytes in order, as a view if they are contiguous already."""
    if not tensor.numel():
        return memoryview(b"")
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
