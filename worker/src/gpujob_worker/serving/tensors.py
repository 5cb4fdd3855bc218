"""Tensors of the Open Inference Protocol: JSON numbers or little-endian bytes, and torch tensors.

Every function raises `InputError` with the name of the tensor and the next step.
"""

import math
from typing import Any

import numpy as np
import torch

from gpujob_worker.serving.datatypes import DATATYPES, datatype_of
from gpujob_worker.serving.signature import InputError

DIMENSIONS_MAX = 16
DIMENSION_MAX = 2**31 - 1
TEXT_CHARACTERS_MAX = 80


def short(value: object) -> str:
    """Returns a value of a request for an error message, cut to one line."""
    text = repr(value)
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 3]}..."


def read_shape(name: str, value: Any) -> tuple[int, ...]:
    """Returns the shape in a request."""
    if not isinstance(value, list):
        raise InputError(f"{name}: shape must be a list of whole numbers; got {short(value)}")
    sizes: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    if len(sizes) > DIMENSIONS_MAX:
        raise InputError(
            f"{name}: shape must have at most {DIMENSIONS_MAX} dimensions; got {len(sizes)}"
        )
    for size in sizes:
        if type(size) is not int or not 0 <= size <= DIMENSION_MAX:
            raise InputError(
                f"{name}: each size in shape must be a whole number from 0 to {DIMENSION_MAX};"
                f" got {short(size)}"
            )
    return tuple(sizes)


def read_datatype(name: str, value: Any) -> torch.dtype:
    """Returns the torch type of a datatype in a request."""
    dtype = DATATYPES.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise InputError(
            f"{name}: datatype must be one of {', '.join(DATATYPES)}; got {short(value)}"
        )
    return dtype


def from_numbers(name: str, data: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns the tensor of JSON numbers, nested or flat, in row-major order."""
    if dtype is torch.bfloat16:
        raise InputError(f"{name}: BF16 has no JSON form; send it as binary data")
    if not isinstance(data, list):
        raise InputError(f"{name}: data must be a list; got {short(data)}")
    try:
        # numpy would read numbers below and above 2^63 together as floats.
        array: Any = np.array(data, dtype=object if dtype is torch.uint64 else None)
    except (ValueError, OverflowError, RecursionError):
        raise InputError(f"{name}: all lists in data must have the same length") from None
    # Nested lists end at a dimension of size 0.
    is_other = array.ndim > 1 and array.size and array.shape != shape
    if array.size != math.prod(shape) or is_other:
        got = list(array.shape) if array.ndim > 1 else f"{array.size} values"
        raise InputError(
            f"{name}: data must have shape {list(shape)}, or be flat with {math.prod(shape)}"
            f" values; got {got}"
        )
    return torch.from_numpy(_converted(name, array, dtype).reshape(shape))


def _converted(name: str, array: Any, dtype: torch.dtype) -> Any:
    """Returns the array in the wanted type. Numbers that the type cannot hold are refused, because
    a conversion would change them silently.
    """
    wanted = np.dtype(str(dtype).removeprefix("torch."))
    accepted = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[wanted.kind]
    datatype = datatype_of(dtype)
    kind = array.dtype.kind
    if kind == "O" and dtype is torch.uint64 and all(type(one) is int for one in array.flat):
        kind = "u"
    if array.size and kind not in accepted:
        what = {"b": "true or false", "f": "numbers"}.get(wanted.kind, "whole numbers of 64 bits")
        raise InputError(f"{name}: data of type {datatype} must be {what}")
    if array.size and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise InputError(
                f"{name}: data of type {datatype} must be from {limits.min} to {limits.max};"
                f" got {low if low < limits.min else high}"
            )
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    if wanted.kind == "f" and bool(np.any(np.isinf(converted) & np.isfinite(array))):
        raise InputError(f"{name}: data of type {datatype} has a number beyond its range")
    return converted


def from_bytes(
    name: str, data: memoryview, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Returns the tensor of little-endian bytes in row-major order. The bytes are copied."""
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise InputError(
            f"{name}: binary data of shape {list(shape)} and type {datatype_of(dtype)} must have"
            f" {needed} bytes; got {len(data)}"
        )
    if not needed:
        return torch.empty(shape, dtype=dtype)
    # The copy is aligned, which a position in a request's body need not be.
    array = np.frombuffer(data, np.uint8).copy()
    if dtype is torch.bool:
        # Any other byte than 0 and 1 is undefined in a bool.
        array = (array != 0).view(np.uint8)
    return torch.from_numpy(array).view(dtype).reshape(shape)  # pyright: ignore[reportUnknownMemberType]


def to_numbers(name: str, tensor: torch.Tensor) -> list[Any]:
    """Returns the numbers of a tensor, flat."""
    if tensor.dtype is torch.bfloat16:
        text = 'BF16 has no JSON form; request it with "parameters": {"binary_data": true}'
        raise InputError(f"{name}: {text}")
    return tensor.flatten().tolist()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Returns the little-endian bytes of a tensor in row-major order."""
    if not tensor.numel():
        return b""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().tobytes()
