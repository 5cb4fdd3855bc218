"""Functions with the variables that they enclose, methods, partial calls, classes and modules.

Their code is not saved: a resume finds it in the script and in its imports. The values that they
keep are.
"""

import enum
import functools
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.script_source import is_of_script
from gpujob_worker.resume.values.attributes import restore_attributes
from gpujob_worker.resume.values.family import KIND, Encoded, Family, Node
from gpujob_worker.resume.values.kinds import AS_IT_IS, name_of
from gpujob_worker.resume.values.objects import read_left
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer


def found_global(name: str) -> Any:
    """Returns the value that an imported module has under the name, or None."""
    module = name
    while module:
        module = module.rpartition(".")[0]
        if module in sys.modules:
            found: Any = sys.modules[module]
            for part in name[len(module) + 1 :].split("."):
                found = getattr(found, part, None)
            if found is not None:
                return found
    return None


def _global_name(value: Any) -> str | None:
    """Returns the name under which a module has the class or function, or None."""
    module = getattr(value, "__module__", None) or type(getattr(value, "__self__", 0)).__module__
    name = f"{module}.{getattr(value, '__qualname__', value.__name__)}"
    if found_global(name) is value:
        return name
    if isinstance(value, types.FunctionType) or module not in sys.modules:
        return None  # a variable may have another function later
    names = [other for other, each in list(vars(sys.modules[module]).items()) if each is value]
    return f"{module}.{names[0]}" if names else None


def code_key(value: Any) -> str:
    """Returns a key that distinguishes the code of functions and generators of one program."""
    code: types.CodeType = value.gi_code if hasattr(value, "gi_code") else value.__code__
    key = f"{code.co_qualname} {code.co_firstlineno}"
    if code.co_name in ("<lambda>", "<genexpr>"):
        columns = [place[2] for place in code.co_positions() if place[0] and place[2]]
        key += f" {min(columns, default=0)}"
    return key


def read_function(reader: Reader, value: Any, path: str) -> Node:
    name, code = _global_name(value), code_key(value)
    node: Node = {KIND: "function", "name": name, "code": code}
    if name is None and reader.of_library and not is_of_script(value):
        return read_left(reader, value, path)
    if name is None:
        reader.check_made_before(path, code)
    if not is_of_script(value):
        return node
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    defaults: Node = value.__kwdefaults__ or {}
    return {
        **node,
        "cells": [reader.encode(cell, f"{path}.{name}") for name, cell in cells],
        "attributes": reader.encode_named(vars(value), path),
        "defaults": [reader.encode(each, path) for each in value.__defaults__ or ()],
        "keywords": reader.encode_named(defaults, path),
    }


def restore_function(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    if node["name"] is not None:
        existing = found_global(node["name"])
    known = isinstance(existing, types.FunctionType)
    own = known and (node["name"] is None or is_of_script(existing))
    if not known or (own and code_key(existing) != node["code"]):
        found = "nothing" if existing is None else f"a {type(existing).__name__}"
        raise MismatchError(f"{path} was the function {node['code']}, and is {found}")
    if "cells" not in node:
        restorer.bind(index, existing)
        return
    found = _with_cells(restorer, node["cells"], existing)
    restorer.bind(index, found)
    for encoded in node["cells"]:
        _fill_cell(restorer, int(encoded[1]), path)
    restore_attributes(restorer, found, node["attributes"], path)
    before: Any = found.__defaults__ or ()
    values = tuple(restorer.values(node["defaults"], before, path))
    if not _are_same(values, before):
        found.__defaults__ = values or None
    keywords: Node = found.__kwdefaults__ or {}
    for name, encoded in node["keywords"].items():
        keywords[name] = restorer.value(encoded, keywords.get(name), f"{path}.{name}")


def _with_cells(restorer: Restorer, saved: Sequence[Encoded], existing: Any) -> Any:
    """Returns the function, or another one of its code if its enclosed variables are shared
    differently.
    """
    taken = restorer.is_taken(existing)
    before: Sequence[Any] = existing.__closure__ or ()
    cells: list[Any] = []
    for encoded, cell in zip(saved, before, strict=True):
        index = int(encoded[1])
        if not restorer.is_bound(index):
            restorer.bind(index, types.CellType() if restorer.is_taken(cell) else cell)
        cells.append(restorer.bound(index))
    if not taken and _are_same(cells, before):
        return existing
    made = types.FunctionType(
        existing.__code__, existing.__globals__, existing.__name__, None, tuple(cells)
    )
    functools.update_wrapper(made, existing)
    made.__kwdefaults__ = dict(existing.__kwdefaults__ or {})
    return made


def _are_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether both have the same objects."""
    return len(values) == len(others) and all(
        one is other for one, other in zip(values, others, strict=True)
    )


def read_cell(reader: Reader, value: types.CellType, path: str) -> Node:
    try:
        return {KIND: "cell", "value": reader.encode(value.cell_contents, path)}
    except ValueError:
        return {KIND: "cell"}


def restore_cell(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del node
    fits = restorer.fits(existing, types.CellType)
    restorer.bind(index, existing if fits else types.CellType())
    _fill_cell(restorer, index, path)


def _fill_cell(restorer: Restorer, index: int, path: str) -> None:
    if not restorer.begins_to_fill(index):
        return
    node, cell = restorer.node(index), restorer.bound(index)
    if "value" not in node:
        return
    try:
        before = cell.cell_contents
    except ValueError:
        before = None
    cell.cell_contents = restorer.value(node["value"], before, path)


def read_method(reader: Reader, value: Any, path: str) -> Node:
    parts = (value.__self__, value.__func__)
    return {KIND: "method", "parts": [reader.encode(each, path) for each in parts]}


def restore_method(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    is_method = isinstance(existing, types.MethodType)
    before = (existing.__self__, existing.__func__) if is_method else (None, None)
    owner, function = restorer.values(node["parts"], before, path)
    same = is_method and owner is before[0] and function is before[1]
    restorer.bind(index, existing if same else types.MethodType(function, owner))


def read_builtin(reader: Reader, value: Any, path: str) -> Node:
    name = _global_name(value)
    if name is not None:
        return {KIND: "global", "name": name}
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        if reader.of_library:
            return read_left(reader, value, path)
        raise UnsavableError(f"{path} is the function {value.__name__} of an unknown module")
    return read_builtin_method(reader, value, path)


def restore_global(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del existing
    found = found_global(node["name"])
    if found is None:
        raise MismatchError(f"{path}: there is no {node['name']}")
    restorer.bind(index, found)


def read_builtin_method(reader: Reader, value: Any, path: str) -> Node:
    """Returns a method that Python's own class gives its objects, such as `__next__` of a
    counter.
    """
    own = reader.encode(value.__self__, path)
    return {KIND: "builtin method", "self": own, "name": value.__name__}


def restore_builtin_method(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    owner = restorer.value(node["self"], getattr(existing, "__self__", None), path)
    found = getattr(owner, node["name"], None)
    if found is None:
        raise MismatchError(f"{path}: {type(owner).__name__} has no {node['name']}")
    restorer.bind(index, found)


def read_partial(reader: Reader, value: Any, path: str) -> Node:
    parts = (value.func, value.args, value.keywords)
    return {KIND: "partial", "parts": [reader.encode(each, path) for each in parts]}


def restore_partial(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    fits = restorer.fits(existing, functools.partial)
    before = (existing.func, existing.args, existing.keywords) if fits else (None, None, None)
    function, arguments, keywords = restorer.values(node["parts"], before, path)
    same = function is before[0] and arguments is before[1] and keywords is before[2]
    made = existing if same else functools.partial(function, *arguments, **keywords)
    restorer.bind(index, made)


def read_class(reader: Reader, value: Any, path: str) -> Node:
    """Returns the values that the script keeps in its classes, and only the identity of
    functions.
    """
    node: Node = {KIND: "class", "name": name_of(value), "global": _global_name(value)}
    if is_of_script(value) and not issubclass(value, enum.Enum):
        node["attributes"] = reader.encode_named(_state_of_class(value), path)
        node["functions"] = _functions_of_class(value)
    return node


def restore_class(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    if node["global"] is not None:
        existing = found_global(node["global"])
    if not isinstance(existing, type) or name_of(existing) != node["name"]:
        raise MismatchError(f"{path} was of the class {node['name']}, which is not there")
    restorer.bind(index, existing)
    if "attributes" not in node:
        return
    if _functions_of_class(existing) != node["functions"]:
        raise MismatchError(f"{path}: {node['name']} has other functions than it had")
    before = _state_of_class(existing)
    for name, encoded in node["attributes"].items():
        value = restorer.value(encoded, before.get(name), f"{path}.{name}")
        if name not in before or value is not before[name]:
            setattr(existing, name, value)
    for name in before.keys() - node["attributes"].keys():
        delattr(existing, name)


def _state_of_class(kind: type) -> dict[str, Any]:
    """Returns the values that a class keeps, without its description."""
    return {
        name: each
        for name, each in vars(kind).items()
        if not (name.startswith("__") or callable(each) or isinstance(each, AS_IT_IS))
        and not hasattr(each, "__get__")
    }


def _functions_of_class(kind: type) -> dict[str, str]:
    own = {name: each for name, each in vars(kind).items() if isinstance(each, types.FunctionType)}
    return {name: code_key(each) for name, each in own.items()}


def read_python_module(reader: Reader, value: Any, path: str) -> Node:
    del reader, path
    return {KIND: "python module", "name": value.__name__}


def restore_python_module(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del existing
    found = sys.modules.get(node["name"])
    if found is None:
        raise MismatchError(f"{path}: the script did not import {node['name']}")
    restorer.bind(index, found)


FAMILY = Family(
    restores={
        "function": restore_function,
        "cell": restore_cell,
        "method": restore_method,
        "global": restore_global,
        "builtin method": restore_builtin_method,
        "partial": restore_partial,
        "class": restore_class,
        "python module": restore_python_module,
    },
    reads={
        # Scripts have many of these, and base classes are checked one by one.
        types.FunctionType: read_function,
        types.ModuleType: read_python_module,
        type: read_class,
        types.CellType: read_cell,
        types.MethodType: read_method,
        types.BuiltinFunctionType: read_builtin,
        types.MethodWrapperType: read_builtin_method,
        functools.partial: read_partial,
    },
    reads_of_bases=(
        (np.ufunc, read_builtin),
        (types.FunctionType, read_function),
        (type, read_class),
        (types.ModuleType, read_python_module),
    ),
)
