"""Nested state as JSON and named tensors, without pickle. Every bit comes back, NaN included."""

import json
import math
from typing import Any, cast

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import CorruptError, UnsavableError
from gpujob_worker.checkpoint.tensor_file import savable_tensor

_TAG = "$"
_SIGNED = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class _Writer:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, torch.Tensor):
            if not savable_tensor(value):
                text = f"{path}: a tensor of {value.dtype} in {value.layout} cannot be saved"
                raise UnsavableError(text)
            return {_TAG: "tensor", "name": self._store(value)}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value), path, scalar=isinstance(value, np.generic))
        if isinstance(value, float):
            return self._float(float(value))
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            pairs = [[self.encode(k, path), self.encode(v, f"{path}.{k}")] for k, v in items]
            return {_TAG: "dict", "items": pairs}
        if isinstance(value, (list, tuple)):
            entries = cast("list[Any]", value)
            kind = "list" if isinstance(value, list) else "tuple"
            encoded = [self.encode(entry, f"{path}[{n}]") for n, entry in enumerate(entries)]
            return {_TAG: kind, "items": encoded}
        raise UnsavableError(f"{path}: a {type(value).__name__} cannot be saved without pickle")

    def _float(self, value: float) -> Any:
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}

    def _array(self, array: Any, path: str, *, scalar: bool) -> Any:
        name = str(array.dtype)
        plain = array.view(_SIGNED[name]) if name in _SIGNED else array
        try:
            tensor = torch.from_numpy(np.array(plain, order="C"))
        except TypeError:
            raise UnsavableError(f"{path}: an array of {name} cannot be saved") from None
        return {_TAG: "array", "name": self._store(tensor), "dtype": name, "scalar": scalar}

    def _store(self, tensor: torch.Tensor) -> str:
        """Once per tensor, also when it appears under several names (tied weights).

        What is kept here is alive, so an address is an identity until the tree is written.
        """
        layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device))
        key = (tensor.data_ptr(), *layout) if tensor.numel() else (id(tensor), *layout)
        if key not in self._names:
            self._names[key] = name = f"t{len(self.tensors)}"
            self.tensors[name] = tensor.detach()
        return self._names[key]


def encode_tree(value: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """JSON text, and the tensors themselves: not copied, so they change when training goes on.

    Raises `UnsavableError`.
    """
    writer = _Writer()
    data = writer.encode(value, "state")
    return json.dumps(data, separators=(",", ":"), allow_nan=False), writer.tensors


def decode_tree(text: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value again. Raises `CorruptError` on anything that `encode_tree` does not write."""
    try:
        return _decode(json.loads(text), tensors)
    except (KeyError, TypeError, ValueError, json.JSONDecodeError) as error:
        raise CorruptError(f"state cannot be read: {type(error).__name__}: {error}") from None


def _decode(data: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(data, dict):
        if isinstance(data, list):
            raise TypeError("a bare list")
        return data
    tagged = cast("dict[str, Any]", data)
    kind = tagged[_TAG]
    if kind == "tensor":
        return tensors[tagged["name"]]
    if kind == "float":
        return float(tagged["value"])
    if kind == "array":
        return _decode_array(tagged, tensors)
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in tagged["items"]}
    entries = [_decode(entry, tensors) for entry in tagged["items"]]
    if kind == "list":
        return entries
    if kind == "tuple":
        return tuple(entries)
    raise TypeError(f"unknown kind {kind!r}")


def _decode_array(tagged: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    array = tensors[tagged["name"]].numpy().copy()
    if tagged["dtype"] in _SIGNED:
        array = array.view(tagged["dtype"])
    return array[()] if tagged["scalar"] else array
