"""Python's containers: lists, sets, deques, byte arrays, tuples and dictionaries.

A large container of plain values that did not change is not saved; its hash is.
"""

import collections
from typing import Any, cast

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.values.attributes import restore_attributes
from gpujob_worker.resume.values.baseline import LARGE_ITEMS, digest_of, plain_digest
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.kinds import ATOMS, CONTAINERS
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

_TUPLES: dict[str, Any] = {"tuple": tuple, "Size": torch.Size, "frozenset": frozenset}


def read_container(reader: Reader, value: Any, path: str) -> Node:
    kind = type(value).__name__
    if len(value) >= LARGE_ITEMS:
        digest = plain_digest(value)
        if digest is not None and reader.first:
            reader.baseline.sees_container(value, digest)
            return {}
        if digest is not None and reader.baseline.is_unchanged_container(value, digest):
            inner = _inner_containers(value)
            if reader.may_omit(value, inner, path, _read_whole):
                return {KIND: "unchanged", "type": kind, "digest": digest}
    return _read_whole(reader, value, path)


def _read_whole(reader: Reader, value: Any, path: str) -> Node:
    described = {KIND: type(value).__name__, **read_content(reader, value, path)}
    if isinstance(value, collections.OrderedDict) and vars(value):
        described["attributes"] = reader.encode_named(vars(value), path)
    return described


def _inner_containers(value: Any) -> list[int]:
    """Returns the identities of the containers inside a container of these and plain values."""
    found: list[int] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        items = [*one.keys(), *one.values()] if isinstance(one, dict) else one
        kinds = set(map(type, items))
        if not kinds <= ATOMS:
            inner = [each for each in items if type(each) not in ATOMS]
            found += map(id, inner)
            waiting += inner
    return found


def restore_unchanged(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    is_array = node["type"] == "array"
    digest = None
    if isinstance(existing, np.ndarray) if is_array else existing is not None:
        digest = digest_of(existing) if is_array else plain_digest(existing)
    if digest != node["digest"]:
        raise MismatchError(f"{path} is not what it was: the script made it otherwise")
    restorer.bind(index, existing)


def read_content(reader: Reader, value: Any, path: str) -> Node:
    """Returns the content of a container, or of an object that is one."""
    described: Node = {"items": _read_items(reader, value, path)}
    if isinstance(value, collections.deque):
        described["most"] = cast("Any", value).maxlen
    if isinstance(value, collections.defaultdict):
        factory = cast("Any", value).default_factory
        described["factory"] = reader.encode(factory, f"{path}.default_factory")
    return described


def _read_items(reader: Reader, value: Any, path: str) -> list[Any]:
    if isinstance(value, (set, frozenset)) and not _keeps_order(value):
        raise UnsavableError(f"{path} is a set of numbers in an order that no other set gets")
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return [
            (reader.encode(key, path), reader.encode(entry, f"{path}[{key!r:.40}]"))
            for key, entry in pairs
        ]
    return [reader.encode(entry, f"{path}[{at}]") for at, entry in enumerate(value)]


def _keeps_order(value: "set[Any] | frozenset[Any]") -> bool:
    """Returns whether a set made of the items has them in the same order.

    The order of values other than numbers differs between processes.
    """
    if not set(map(type, value)) <= {int, float, bool}:
        return True
    made: set[Any] = set()
    for each in value:
        made.add(each)
    return list(made) == list(value)


def fill_content(restorer: Restorer, target: Any, node: Node, path: str) -> None:
    """Restores the content of a container, or of an object that is one.

    It uses the container's own methods, because a class of the script may have others.
    """
    if isinstance(target, dict):
        _fill_dict(restorer, target, node, path)
        return
    values = restorer.values(node["items"], list(target), path)
    if isinstance(target, collections.deque):
        collections.deque.__init__(target, values, node["most"])  # pyright: ignore
    elif isinstance(target, set):
        set.clear(target)  # pyright: ignore[reportUnknownMemberType]
        set.update(target, values)  # pyright: ignore[reportUnknownMemberType]
    else:
        list.__setitem__(target, slice(None), values)


def _fill_dict(restorer: Restorer, target: Any, node: Node, path: str) -> None:
    if isinstance(target, collections.defaultdict):
        target.default_factory = restorer.value(
            node["factory"], target.default_factory, f"{path}.default_factory"
        )
    before = dict(target)
    values: list[tuple[Any, Any]] = []
    for key, entry in node["items"]:
        name = restorer.value(key, None, path)
        values.append((name, restorer.value(entry, before.get(name), f"{path}[{name!r:.40}]")))
    is_ordered = isinstance(target, collections.OrderedDict)
    base: Any = collections.OrderedDict if is_ordered else dict
    if not _are_alike(list(before), [name for name, _ in values]):
        # With the same keys a loop over it continues.
        base.clear(target)
    for name, value in values:
        base.__setitem__(target, name, value)


def _are_alike(before: list[Any], after: list[Any]) -> bool:
    """Compares types too, because 1 is not True."""
    same = len(before) == len(after)
    return same and all(
        type(one) is type(other) and one == other for one, other in zip(before, after, strict=True)
    )


def restore_container(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind = CONTAINERS[node[KIND]]
    target: Any = existing if restorer.fits(existing, kind) else kind()
    restorer.bind(index, target)
    fill_content(restorer, target, node, path)
    if kind is collections.OrderedDict:
        restore_attributes(restorer, target, node.get("attributes", {}), path)


def restore_tuple(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    fill_tuple(restorer, index, node, existing, path, _TUPLES[node[KIND]])


def fill_tuple(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str, kind: Any
) -> None:
    """Binds the node to a tuple or a frozen set of the kind. These are made with their content."""
    before: Any = existing if type(existing) is kind else ()
    values = restorer.values(node["items"], list(before), path)
    if restorer.is_bound(index):
        return  # a value inside it references it, and reached it first
    ordered = kind is not frozenset and len(values) == len(before)
    same = ordered and type(existing) is kind
    same = same and all(one is other for one, other in zip(values, before, strict=True))
    of_script = issubclass(kind, tuple) and kind is not torch.Size
    make: Any = tuple.__new__ if of_script else kind.__new__
    restorer.bind(index, existing if same else make(kind, values))


def read_bytearray(reader: Reader, value: bytearray, path: str) -> Node:
    del reader, path
    return {KIND: "bytearray", "data": bytes(value)}


def restore_bytearray(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del path
    target: bytearray = existing if restorer.fits(existing, bytearray) else bytearray()
    target[:] = node["data"]
    restorer.bind(index, target)


FAMILY = Family(
    restores={
        "unchanged": restore_unchanged,
        **dict.fromkeys(CONTAINERS, restore_container),
        **dict.fromkeys(_TUPLES, restore_tuple),
        "bytearray": restore_bytearray,
    },
    reads={
        **dict.fromkeys((*CONTAINERS.values(), *_TUPLES.values()), read_container),
        bytearray: read_bytearray,
    },
)
