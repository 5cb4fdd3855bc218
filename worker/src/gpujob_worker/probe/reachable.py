"""Finds objects that a module or a dataset references besides its tensors: own generators, open
files, helpers.

It searches attributes, closures and arguments, some levels deep, and globals of the code that
defines the object.
"""

import io
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import torch

_OBJECTS_MAX = 2000
_ITEMS_MAX = 64
_DEPTH = 3
# Transforms of transforms each hold a list of others.
_DATASET_DEPTH = 12
# Objects of these packages are leaves. The search descends only into the script's own.
_CLOSED = frozenset(
    ("torch", "numpy", "builtins", "collections", "functools", "threading", "types")
)
_PLAIN = (str, bytes, int, float, complex, bool, type, ModuleType, torch.Tensor, type(None))
# These packages read through a descriptor or a connection that forked processes would share.
_SHARED = frozenset(("h5py", "lmdb", "sqlite3", "netCDF4", "rasterio"))


def reachable(starts: Iterable[Any], depth: int = _DEPTH, *, limited: bool = True) -> Iterator[Any]:
    """Yields the objects in `starts` and those that they reference, each once.

    If `limited`, at most `_OBJECTS_MAX`, and the first `_ITEMS_MAX` of each container.
    """
    items_max = _ITEMS_MAX if limited else None
    seen: set[int] = set()
    level = list(starts)
    for _ in range(depth + 1):
        following: list[Any] = []
        for value in level:
            if isinstance(value, _PLAIN) or id(value) in seen:
                continue
            if limited and len(seen) >= _OBJECTS_MAX:
                return
            seen.add(id(value))
            yield value
            following += _inside(value, items_max)
        level = following


def _inside(value: Any, items_max: int | None) -> list[Any]:
    if isinstance(value, (dict, list, tuple, set)):
        items: Any = value
        return list(islice(items.values() if isinstance(value, dict) else items, items_max))
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        return _bound(value)
    if isinstance(value, Callable) and hasattr(value, "__self__"):
        function = getattr(value, "__func__", None)
        return [value.__self__, function]  # pyright: ignore[reportFunctionMemberAccess]
    closed = str(type(value).__module__).split(".")[0] in _CLOSED
    own: Any = getattr(value, "__dict__", None)
    # Torch's layers and datasets hold the script's objects. Its other objects hold none.
    opens = not closed or isinstance(value, (torch.nn.Module, torch.utils.data.Dataset))
    return list(own.values()) if opens and isinstance(own, dict) else []


def _bound(function: FunctionType) -> list[Any]:
    """Returns the values that a function gets from its definition: its closure and its defaults."""
    bound = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing was assigned yet
            bound.append(cell.cell_contents)
    return [*bound, *vars(function).values()][:_ITEMS_MAX]


def globals_of(kinds: Iterable[type | FunctionType]) -> list[Any]:
    """Returns the globals of the script and of the modules that define `kinds`, except
    libraries.
    """
    names = {kind.__module__ for kind in kinds if kind.__module__.split(".")[0] not in _CLOSED}
    modules = [sys.modules.get(name) for name in {"__main__", *names}]
    return [value for module in modules if module is not None for value in vars(module).values()]


class OwnGenerators:
    """Generators other than the global ones. Their states can be compared and restored."""

    def __init__(self, generators: Iterable[Any]) -> None:
        self._states = [(g, _state(g)) for g in generators]

    @classmethod
    def of_module(cls, module: torch.nn.Module) -> "OwnGenerators":
        layers = list(module.modules())
        held = [value for layer in layers for value in vars(layer).values()]
        kinds = {type(layer) for layer in layers}
        found = [*reachable(held, 2), *reachable(globals_of(kinds), 1)]
        return cls({id(g): g for g in found if _is_generator(g)}.values())

    @classmethod
    def of_dataset(cls, dataset: Any) -> "OwnGenerators":
        held = list(reachable([dataset], _DATASET_DEPTH))
        functions = [value for value in held if isinstance(value, FunctionType)]
        found = [*held, *reachable(globals_of([type(dataset), *functions]), 1)]
        return cls({id(g): g for g in found if _is_generator(g)}.values())

    @property
    def drew(self) -> bool:
        return any(_differs(_state(g), state) for g, state in self._states)

    def restore(self) -> None:
        for generator, state in self._states:
            _set_state(generator, state)


def open_file(dataset: Any) -> str | None:
    """Returns the kind of open file or connection through which the dataset reads, or None."""
    for value in reachable([dataset], _DATASET_DEPTH):
        kind = type(value)
        if isinstance(value, io.IOBase) and _reads(value):
            return kind.__name__
        if kind.__module__.split(".")[0] in _SHARED:
            return f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    return None


def _reads(file: io.IOBase) -> bool:
    elsewhere = isinstance(file, (io.BytesIO, io.StringIO))
    elsewhere = elsewhere or any(file is std for std in (sys.stdin, sys.stdout, sys.stderr))
    return not elsewhere and not file.closed and file.readable()


def _is_generator(value: Any) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.random.Generator, numpy.random.RandomState)
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    own = getattr(generator, "bit_generator", None)
    return own.state if own is not None else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _differs(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return not torch.equal(state, other)
    return repr(state) != repr(other)
