"""The inverse of `tree.encode_tree`: values from JSON and named tensors, and nothing else.

No code chosen by the text runs. Classes are looked up among the imported ones, must be of the
expected type, and get their entries without their own constructors.
"""

import json
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import numpy as np
import torch

from gpujob_worker.checkpoint.class_names import find_class
from gpujob_worker.checkpoint.errors import CorruptError, MismatchError, UnreadableError

TAG = "$"
# Maximum number of containers around a value. In JSON, one of them has at most three brackets.
DEPTH_MAX = 100
_BRACKETS_MAX = 4 * DEPTH_MAX
SIGNED = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
FACTORIES: dict[str, type] = {
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
}
_BASES: dict[str, Any] = {"str": str, "int": int, "float": float}


def decode_tree(text: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns the value. Raises `CorruptError` on anything that `encode_tree` does not write.

    Raises `MismatchError` if a value's class is missing, or is another one now.
    """
    try:
        return _Decoder(tensors).decode(json.loads(text))
    except RecursionError:
        if _depth(text) > _BRACKETS_MAX:
            raise CorruptError(f"state is nested in more than {DEPTH_MAX} others") from None
        raise UnreadableError(
            "state cannot be read: the calls are nested too deeply where it is loaded"
        ) from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptError(f"state cannot be read: {type(error).__name__}: {error}") from None


class _Decoder:
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def decode(self, data: Any) -> Any:
        if isinstance(data, list):
            raise TypeError("a bare list")
        if not isinstance(data, dict):
            return data
        tagged = cast("dict[str, Any]", data)
        return _KINDS[tagged[TAG]](self, tagged)

    def entries(self, tagged: dict[str, Any]) -> list[Any]:
        return [self.decode(entry) for entry in tagged["items"]]

    def pairs(self, tagged: dict[str, Any]) -> dict[Any, Any]:
        found = {self.decode(key): self.decode(value) for key, value in tagged["items"]}
        return _whole(found, tagged)

    def tensor(self, tagged: dict[str, Any]) -> torch.Tensor:
        return self._tensors[tagged["name"]]

    def bytes(self, tagged: dict[str, Any]) -> bytes:
        tensor = self._tensors[tagged["name"]]
        if tensor.dtype is not torch.uint8:
            raise TypeError(f"bytes of {tensor.dtype}")
        return tensor.numpy().tobytes()

    def array(self, tagged: dict[str, Any]) -> Any:
        array = self._tensors[tagged["name"]].numpy().copy()
        name = tagged["dtype"]
        if name in SIGNED:
            array = array.view(name)
        if str(array.dtype) != name:
            raise TypeError(f"an array of {array.dtype}, not {name}")
        return array[()] if tagged["scalar"] else array

    def complex(self, tagged: dict[str, Any]) -> complex:
        return complex(self.decode(tagged["real"]), self.decode(tagged["imaginary"]))

    def default(self, tagged: dict[str, Any]) -> "defaultdict[Any, Any]":
        name = tagged["factory"]
        return defaultdict(None if name is None else FACTORIES[name], self.pairs(tagged))

    def deque(self, tagged: dict[str, Any]) -> "deque[Any]":
        return _whole(deque(self.entries(tagged), tagged["maxlen"]), tagged)

    def ordered(self, tagged: dict[str, Any]) -> "OrderedDict[Any, Any]":
        found = OrderedDict(self.pairs(tagged))
        if "attributes" in tagged:
            vars(found).update(self.decode(tagged["attributes"]))
        return found

    def named_tuple(self, tagged: dict[str, Any]) -> Any:
        kind, fields = find_class(tagged["class"], tuple), tagged["fields"]
        now = getattr(kind, "_fields", None)
        if now != tuple(fields):
            raise MismatchError(f"{tagged['class']} had the fields {fields}, and has {now} now")
        return _whole(tuple.__new__(kind, self.entries(tagged)), {"items": fields})

    def member(self, tagged: dict[str, Any]) -> Enum:
        kind, name = find_class(tagged["class"], Enum), tagged["name"]
        found = kind.__members__.get(name)
        if found is None:
            raise MismatchError(f"{tagged['class']} has no member {name} any more")
        return found

    def subclass(self, tagged: dict[str, Any]) -> Any:
        base = _BASES[tagged["of"]]
        value = self.decode(tagged["value"])
        if type(value) is not base:
            raise TypeError(f"no {tagged['of']}: {type(value).__name__}")
        return base.__new__(find_class(tagged["class"], base), value)


def _whole(found: Any, tagged: dict[str, Any]) -> Any:
    """Returns `found` after a check that no entries were merged or lost."""
    if len(found) != len(tagged["items"]):
        raise ValueError(f"{len(tagged['items'])} entries became {len(found)}")
    return found


def _depth(text: str) -> int:
    """Returns how deeply brackets are nested."""
    deepest = depth = 0
    for mark in re.sub(r'"(?:[^"\\]|\\.)*"|[^][{}]', "", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


_KINDS: dict[str, Callable[[_Decoder, dict[str, Any]], Any]] = {
    "tensor": _Decoder.tensor,
    "array": _Decoder.array,
    "float": lambda decoder, tagged: float(tagged["value"]),
    "int": lambda decoder, tagged: int(tagged["value"], 16),
    "complex": _Decoder.complex,
    "np.str_": lambda decoder, tagged: np.str_(tagged["value"]),
    "bytes": _Decoder.bytes,
    "bytearray": lambda decoder, tagged: bytearray(decoder.bytes(tagged)),
    "dict": _Decoder.pairs,
    "list": _Decoder.entries,
    "tuple": lambda decoder, tagged: tuple(decoder.entries(tagged)),
    "set": lambda decoder, tagged: _whole(set(decoder.entries(tagged)), tagged),
    "frozenset": lambda decoder, tagged: _whole(frozenset(decoder.entries(tagged)), tagged),
    "torch.Size": lambda decoder, tagged: torch.Size(decoder.entries(tagged)),
    "deque": _Decoder.deque,
    "OrderedDict": _Decoder.ordered,
    "Counter": lambda decoder, tagged: Counter(decoder.pairs(tagged)),
    "defaultdict": _Decoder.default,
    "namedtuple": _Decoder.named_tuple,
    "enum": _Decoder.member,
    "subclass": _Decoder.subclass,
}
