"""Instances with their attributes, exceptions and weak references, and values that are made again.

An instance of a class statement is its attributes. An object that only its own code can read is the
one that the script made before it trained, or a reason not to save.
"""

import collections
import types
import weakref
from typing import Any

from torch.utils.data import Dataset

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.script_source import is_of_script
from gpujob_worker.resume.values import databases
from gpujob_worker.resume.values.attributes import read_attributes, restore_attributes
from gpujob_worker.resume.values.containers import fill_content, fill_tuple, read_content
from gpujob_worker.resume.values.family import KIND, LEFT, Family, Node
from gpujob_worker.resume.values.kinds import (
    AROUND_DATA,
    AS_IT_IS,
    is_plain_object,
    learns_nothing,
    name_of,
)
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

# Scripts keep numbers that they change in an `argparse.Namespace`.
_READ = ("argparse.Namespace", "types.SimpleNamespace")
_CONTAINERS = (dict, list, set, collections.deque, tuple)


def read_object(reader: Reader, value: Any, path: str) -> Node:
    kind = type(value)
    name = name_of(kind)
    own = is_of_script(kind)
    if reader.of_library and not own and _only_library_reads(kind):
        return read_left(reader, value, path)
    if name in databases.TYPES and not reader.first:
        databases.check_database(value, path)
    if name not in _READ and learns_nothing(kind) and not isinstance(value, AROUND_DATA):
        return read_same(reader, value, path)
    if isinstance(value, Dataset) and not own and not reader.of_library:
        reader.check_made_before(path, name)
        if not is_plain_object(kind):
            return read_same(reader, value, path)
        reader.of_library = True
    reader.of_library = reader.of_library and not own
    described: Node = {KIND: "object", "class": reader.encode(kind, path)}
    base = _container_of(kind)
    if not is_plain_object(kind):
        raise UnsavableError(f"{path} is a {name}, which keeps what cannot be read")
    if base is not None:
        described |= {"base": base.__name__, **read_content(reader, value, path)}
    described["attributes"] = read_attributes(reader, value, path)
    return described


def _only_library_reads(kind: type) -> bool:
    read = name_of(kind) in _READ or issubclass(kind, AROUND_DATA)
    return not read and (learns_nothing(kind) or not is_plain_object(kind))


def _container_of(kind: type) -> Any:
    """Returns the container from which the class inherits, or None."""
    return next((each for each in kind.__mro__ if each in _CONTAINERS), None)


def restore_object(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind: Any = restorer.value(node["class"], type(existing), path)
    if not is_plain_object(kind):
        raise MismatchError(f"{path} was a {name_of(kind)}, which cannot be made again")
    base = _container_of(kind)
    if base is tuple:
        fill_tuple(restorer, index, node, existing, path, kind)
        existing = restorer.bound(index)
    else:
        make: Any = base or object
        existing = existing if restorer.fits(existing, kind) else make.__new__(kind)
        restorer.bind(index, existing)
        if base is not None:
            fill_content(restorer, existing, node, path)
    restore_attributes(restorer, existing, node["attributes"], path)


def read_exception(reader: Reader, value: Any, path: str) -> Node:
    args = reader.encode(value.args, f"{path}.args")
    attributes = reader.encode_named(vars(value), path)
    return {
        KIND: "exception",
        "class": reader.encode(type(value), path),
        "args": args,
        "attributes": attributes,
    }


def restore_exception(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind: Any = restorer.value(node["class"], type(existing), path)
    if not issubclass(kind, BaseException):
        raise MismatchError(f"{path} was an exception")
    found = existing if restorer.fits(existing, kind) else kind.__new__(kind)
    restorer.bind(index, found)
    found.args = restorer.value(node["args"], found.args, f"{path}.args")
    restore_attributes(restorer, found, node["attributes"], path)


def read_weak(reader: Reader, value: Any, path: str) -> Node:
    return {KIND: "weak", "to": reader.encode(value(), path)}


def restore_weak(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    before = existing() if isinstance(existing, weakref.ref) else None
    target: Any = restorer.value(node["to"], before, path)
    fits = isinstance(existing, weakref.ref) and before is target
    restorer.bind(index, existing if fits else weakref.ref(_Gone() if target is None else target))


class _Gone:
    """Stands for an object that nothing holds, so that a weak reference to it is dead."""


def read_same(reader: Reader, value: Any, path: str) -> Node:
    """Returns a value that the script makes again and that no step changes."""
    name = name_of(type(value))
    reader.check_made_before(path, name)
    return {KIND: "same", "type": name}


def read_left(reader: Reader, value: Any, path: str) -> Node:
    """Returns a value in a library's object that only the library can read, and makes again."""
    del reader, path
    return {KIND: LEFT, "type": name_of(type(value))}


def restore_same(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    if name_of(type(existing)) != node["type"]:
        found = "nothing" if existing is None else f"a {type(existing).__name__}"
        raise MismatchError(f"{path} was a {node['type']} and is {found}")
    restorer.bind(index, existing)


FAMILY = Family(
    restores={
        "object": restore_object,
        "exception": restore_exception,
        "weak": restore_weak,
        "same": restore_same,
        LEFT: restore_same,
    },
    reads={weakref.ref: read_weak, types.SimpleNamespace: read_object, object: read_same},
    # The last ones, because they fit all values that are of no other family.
    reads_of_bases=(
        (BaseException, read_exception),
        (AS_IT_IS, read_same),
        (object, read_object),
    ),
)
