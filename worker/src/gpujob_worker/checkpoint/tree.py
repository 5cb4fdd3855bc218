"""Nested state as JSON and named tensors, without pickle. Every bit is restored, including NaN.

A value is restored with its type, or is rejected with `UnsavableError`. A tensor that appears twice
is restored as one tensor. Any other value that appears twice is written twice.
"""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast

import numpy as np
import torch

from gpujob_worker.checkpoint.class_names import name_of
from gpujob_worker.checkpoint.decoded_tree import DEPTH_MAX, FACTORIES, SIGNED, TAG, decode_tree
from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.checkpoint.tensor_file import savable_tensor

__all__ = ["decode_tree", "encode_tree"]

# Python refuses to print longer numbers in decimal digits.
_INTEGER_BITS_MAX = 10_000
_INTEGER_MAX = 1 << _INTEGER_BITS_MAX
# Values of these types are frequent, and are written as they are.
_AS_IT_IS = frozenset((bool, str, type(None)))
_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}


def encode_tree(value: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the JSON text and the tensors themselves, which are not copied and change as training
    continues.

    Raises `UnsavableError`.
    """
    encoder = _Encoder()
    try:
        data = encoder.encode(value, "state")
        return json.dumps(data, separators=(",", ":"), allow_nan=False), encoder.tensors
    except UnsavableError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UnsavableError(f"the state cannot be saved: {why}"[:1000]) from None


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        # The containers around the value that is being encoded.
        self._around: set[int] = set()

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind in _SCALARS:
            return _SCALARS[kind](self, value, path)
        if kind in _CONTAINERS:
            return self._contained(_CONTAINERS[kind], value, path)
        if issubclass(kind, torch.Tensor):
            return self._tensor(value, path)
        if issubclass(kind, Enum):
            return self._member(value, path)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._contained(_Encoder._named_tuple, value, path)
        if issubclass(kind, np.generic):
            return self._array(np.asarray(value), path, scalar=True)
        for name, base in _BASES.items():
            if issubclass(kind, base):
                return self._subclass(value, name, path)
        raise UnsavableError(f"{path}: a {kind.__name__} cannot be saved without pickle")

    def _contained(self, encode: "_Encode", value: Any, path: str) -> Any:
        if id(value) in self._around:
            raise UnsavableError(f"{path}: the {type(value).__name__} contains itself")
        if len(self._around) >= DEPTH_MAX:
            raise UnsavableError(f"{path[:200]}: nested in more than {DEPTH_MAX} others")
        self._around.add(id(value))
        try:
            return encode(self, value, path)
        finally:
            self._around.discard(id(value))

    def entries(self, values: Iterable[Any], path: str) -> list[Any]:
        values = list(values)
        if set(map(type, values)) == {int} and max(map(abs, values)) < _INTEGER_MAX:
            return values  # a state of random numbers has hundreds
        return [
            entry if type(entry) in _AS_IT_IS else self.encode(entry, f"{path}[{n}]")
            for n, entry in enumerate(values)
        ]

    def pairs(self, values: dict[Any, Any], path: str) -> list[Any]:
        items = list(values.items())  # at once, because another thread may add some meanwhile
        pairs = [
            [
                k if type(k) is str else self.encode(k, path),
                v if type(v) in _AS_IT_IS else self.encode(v, f"{path}.{k}"),
            ]
            for k, v in items
        ]
        tensors = [key["name"] for key, _ in pairs if type(key) is dict and key[TAG] == "tensor"]
        if len(set(tensors)) < len(tensors):
            raise UnsavableError(f"{path}: two of its keys are the same tensor")
        return pairs

    def integer(self, value: int, path: str) -> Any:
        if value.bit_length() <= _INTEGER_BITS_MAX:
            return value
        return {TAG: "int", "value": hex(value)}

    def float(self, value: float, path: str) -> Any:
        return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}

    def complex(self, value: complex, path: str) -> Any:
        real, imaginary = self.float(value.real, path), self.float(value.imag, path)
        return {TAG: "complex", "real": real, "imaginary": imaginary}

    def bytes(self, value: "bytes | bytearray", path: str) -> Any:
        data = torch.from_numpy(np.frombuffer(value, dtype=np.uint8).copy())
        return {TAG: type(value).__name__, "name": self._store(data)}

    def array(self, value: Any, path: str) -> Any:
        return self._array(value, path, scalar=False)

    def text(self, value: Any, path: str) -> Any:
        return {TAG: "np.str_", "value": str(value)}

    def ordered(self, value: "OrderedDict[Any, Any]", path: str) -> Any:
        """Encodes the attributes too, because a module's state has its version in one."""
        encoded: dict[str, Any] = {TAG: "OrderedDict", "items": self.pairs(value, path)}
        if vars(value):
            encoded["attributes"] = self.encode(dict(vars(value)), path)
        return encoded

    def counter(self, value: "Counter[Any]", path: str) -> Any:
        _refuse_attributes(value, path)
        return {TAG: "Counter", "items": self.pairs(value, path)}

    def default(self, value: "defaultdict[Any, Any]", path: str) -> Any:
        factory = value.default_factory
        name = None if factory is None else _FACTORY_NAMES.get(cast("type", factory))
        if factory is not None and name is None:
            known = ", ".join(FACTORIES)
            raise UnsavableError(
                f"{path}: a defaultdict of {getattr(factory, '__qualname__', factory)} cannot be"
                f" saved without pickle; one of {known} or None can"
            )
        return {TAG: "defaultdict", "factory": name, "items": self.pairs(value, path)}

    def deque(self, value: "deque[Any]", path: str) -> Any:
        return {TAG: "deque", "maxlen": value.maxlen, "items": self.entries(value, path)}

    def _named_tuple(self, value: Any, path: str) -> Any:
        _refuse_attributes(value, path)
        fields = list(type(value)._fields)
        name = _class_of(value, path)
        items = self.entries(tuple(value), path)
        return {TAG: "namedtuple", "class": name, "fields": fields, "items": items}

    def _member(self, value: Enum, path: str) -> Any:
        kind = type(value)
        if kind.__members__.get(str(value.name)) is not value:
            raise UnsavableError(f"{path}: {value!r} is no single member of {kind.__name__}")
        return {TAG: "enum", "class": _class_of(value, path), "name": value.name}

    def _subclass(self, value: Any, name: str, path: str) -> Any:
        """Encodes the plain value and the class. Decoding calls nothing of the class."""
        _refuse_attributes(value, path)
        base, kind = _BASES[name], type(value)
        plain = _PLAIN[name](value)
        try:
            base.__new__(kind, plain)
        except TypeError:
            raise UnsavableError(f"{path}: a {kind.__name__} cannot be saved") from None
        encoded = self.encode(plain, path)
        return {TAG: "subclass", "class": _class_of(value, path), "of": name, "value": encoded}

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if not savable_tensor(value) or value.is_meta:
            what = f"{value.dtype} in {value.layout} on {value.device.type}"
            raise UnsavableError(f"{path}: a tensor of {what} cannot be saved")
        return {TAG: "tensor", "name": self._store(value)}

    def _array(self, array: Any, path: str, *, scalar: bool) -> Any:
        name = str(array.dtype)
        plain = array.view(SIGNED[name]) if name in SIGNED else array
        try:
            tensor = torch.from_numpy(np.array(plain, order="C"))
        except (TypeError, ValueError):
            raise UnsavableError(f"{path}: an array of {name} cannot be saved") from None
        return {TAG: "array", "name": self._store(tensor), "dtype": name, "scalar": scalar}

    def _store(self, tensor: torch.Tensor) -> str:
        """Returns the name of a tensor, which is stored once even under several names (tied
        weights).

        A stored tensor stays alive, so its address is an identity until the tree is written.
        Complex views of one address may differ in a sign that is applied lazily.
        """
        signs = (tensor.is_conj(), tensor.is_neg())
        layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, signs)
        key = (tensor.data_ptr(), *layout) if tensor.numel() else (id(tensor), *layout)
        if key not in self._names:
            self._names[key] = name = f"t{len(self.tensors)}"
            plain = tensor.detach()
            self.tensors[name] = plain.resolve_conj().resolve_neg() if any(signs) else plain
        return self._names[key]


def _sequence(kind: str) -> "_Encode":
    return lambda encoder, value, path: {TAG: kind, "items": encoder.entries(value, path)}


def _mapping(encoder: _Encoder, value: Any, path: str) -> Any:
    return {TAG: "dict", "items": encoder.pairs(value, path)}


def _class_of(value: Any, path: str) -> str:
    name = name_of(type(value))
    if name is None:
        raise UnsavableError(
            f"{path}: the class {type(value).__qualname__} is not found under its name in"
            f" {type(value).__module__}; define it there, and not in a function"
        )
    return name


def _refuse_attributes(value: Any, path: str) -> None:
    """Rejects instances with attributes, which would be lost."""
    slots = any(vars(kind).get("__slots__") for kind in type(value).__mro__)
    if slots or getattr(value, "__dict__", None):
        raise UnsavableError(f"{path}: a {type(value).__name__} with attributes cannot be saved")


_Encode = Callable[[_Encoder, Any, str], Any]
_SCALARS: dict[Any, _Encode] = {
    int: _Encoder.integer,
    float: _Encoder.float,
    complex: _Encoder.complex,
    bytes: _Encoder.bytes,
    bytearray: _Encoder.bytes,
    np.ndarray: _Encoder.array,
    np.str_: _Encoder.text,
}
_CONTAINERS: dict[Any, _Encode] = {
    dict: _mapping,
    list: _sequence("list"),
    tuple: _sequence("tuple"),
    set: _sequence("set"),
    frozenset: _sequence("frozenset"),
    torch.Size: _sequence("torch.Size"),
    deque: _Encoder.deque,
    OrderedDict: _Encoder.ordered,
    Counter: _Encoder.counter,
    defaultdict: _Encoder.default,
}
_BASES: dict[str, Any] = {"str": str, "int": int, "float": float}
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "str": str.__str__,
    "int": int.__int__,
    "float": float.__float__,
}
