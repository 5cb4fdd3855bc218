"""Values that never change: dates, paths, types of numbers, patterns, members of enumerations.

A constant of a known type is made from its parts. Others are compared by their text.
"""

import datetime
import decimal
import enum
import fractions
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.functions_and_classes import found_global
from gpujob_worker.resume.values.kinds import name_of
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

_CONSTANTS = (
    torch.device, torch.dtype, torch.layout, pathlib.PurePath, datetime.date, datetime.time,
    datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern,
    range, slice, type(Ellipsis), type(NotImplemented), np.dtype,
)  # fmt: skip
# Attributes that enumerations keep in their members.
_MEMBER_OWN = ("_value_", "_name_", "__objclass__", "_sort_order_")


def read_constant(reader: Reader, value: Any, path: str) -> Node:
    parts = _parts_of(value)
    if parts is None:
        return {KIND: "constant", "text": _text_of(value)}
    return {
        KIND: "made constant",
        "type": name_of(type(value)),
        "parts": [reader.encode(each, path) for each in parts],
    }


def restore_constant(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    now = _text_of(existing)
    if now != node["text"]:
        raise MismatchError(f"{path} was {node['text']:.100}, and is {now:.100}")
    restorer.bind(index, existing)


def restore_made_constant(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    parts = [restorer.value(each, None, path) for each in node["parts"]]
    try:
        made = _made_from(node["type"], parts)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise MismatchError(f"{path}: a {node['type']} cannot be made: {error}") from None
    same = type(made) is type(existing)
    same = same and repr(_parts_of(made)) == repr(_parts_of(existing))
    restorer.bind(index, existing if same else made)


def _text_of(value: Any) -> str:
    return f"{name_of(type(value))} {value!r}"


def _parts_of(value: Any) -> tuple[Any, ...] | None:
    """Returns the parts from which a constant can be made again, or None if the script has to make
    it.
    """
    kind = type(value)
    if isinstance(value, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
        return (str(value),)
    if isinstance(value, np.dtype):
        descr: Any = np.lib.format.dtype_to_descr(value) if not value.hasobject else "O"
        return (descr,)
    parts = _PARTS.get(kind)
    return None if parts is None else tuple(parts(value))


def _made_from(name: str, parts: list[Any]) -> Any:
    """Returns the constant. Raises `LookupError` for an unknown type."""
    if name.startswith("pathlib."):
        return getattr(pathlib, name.rpartition(".")[2])(*parts)
    if name.startswith("numpy."):
        return np.lib.format.descr_to_dtype(parts[0]) if parts[0] != "O" else np.dtype("O")
    return _MAKE[name](*parts)


def _reduced(value: Any) -> tuple[Any, ...]:
    return value.__reduce__()[1]


def _of_zone(value: Any) -> tuple[Any, ...]:
    return value.__getinitargs__()


def _name(value: Any) -> tuple[str]:
    return (str(value).removeprefix("torch."),)


def _of_torch(name: str) -> Any:
    return getattr(torch, name)


def _fields(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(getattr(value, name) for name in names)


_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys(
        (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal,
         range, slice, torch.device),
        _reduced,
    ),
    datetime.timezone: _of_zone,
    zoneinfo.ZoneInfo: _fields("key"),
    fractions.Fraction: _fields("numerator", "denominator"),
    uuid.UUID: _fields("hex"),
    re.Pattern: _fields("pattern", "flags"),
    torch.dtype: _name,
    torch.layout: _name,
    type(Ellipsis): _fields(),
    type(NotImplemented): _fields(),
}  # fmt: skip
_MAKE: dict[str, Any] = {
    **{name_of(kind): kind for kind in _PARTS},
    name_of(re.Pattern): re.compile,
    name_of(torch.dtype): _of_torch,
    name_of(torch.layout): _of_torch,
}


def read_member(reader: Reader, value: enum.Enum, path: str) -> Node:
    """Returns a member of an enumeration. Some scripts keep changing values in members."""
    own = {name: each for name, each in vars(value).items() if name not in _MEMBER_OWN}
    return {
        KIND: "member",
        "class": name_of(type(value)),
        "name": value.name,
        "value": value.value if isinstance(value, enum.Flag) else None,
        "attributes": reader.encode_named(own, path),
    }


def restore_member(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind: Any = found_global(node["class"])
    kind = type(existing) if kind is None else kind
    flags = node["value"] is not None
    try:
        found = kind(node["value"]) if flags else kind.__members__[node["name"]]
    except (LookupError, AttributeError, ValueError, TypeError):
        raise MismatchError(f"{path}: {node['class']} has no {node['name']}") from None
    restorer.bind(index, found)
    for name, encoded in node["attributes"].items():
        before = vars(found).get(name)
        value = restorer.value(encoded, before, f"{path}.{name}")
        if value is not before:
            object.__setattr__(found, name, value)


FAMILY = Family(
    restores={
        "constant": restore_constant,
        "made constant": restore_made_constant,
        "member": restore_member,
    },
    # A member may be a number or a text too.
    reads_of_bases=((enum.Enum, read_member), (_CONSTANTS, read_constant)),
)
