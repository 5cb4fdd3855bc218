"""Restores the values that `script_values` read in a run of the same script."""

import collections
import contextlib
import functools
import inspect
import io
import itertools
import random
import sys
import types
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume import later_loaders, later_optimizers
from gpujob_worker.resume.frame_variables import set_variables
from gpujob_worker.resume.halted import HaltedAgain
from gpujob_worker.resume.passes import Passes, pass_of
from gpujob_worker.resume.persistent_workers import is_begun
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.tensor_memory import (
    array_at,
    array_layout,
    bytes_of,
    bytes_of_array,
    digest_of,
    layout,
    layout_of,
    owner_of,
    parts_of,
    plain_digest,
    storage_key,
    storage_key_of,
    tensors_of,
    view_of,
)
from gpujob_worker.resume.value_kinds import (
    BASES,
    CONTAINERS,
    ITERATORS,
    KIND,
    LEFT,
    TENSORS,
    attributes,
    attributes_of_module,
    attributes_of_optimizer,
    code_key,
    constant_of,
    constant_parts,
    constant_text,
    found_global,
    functions_of_class,
    held_by_loader,
    is_of_script,
    is_plain_object,
    name_of,
    set_attributes,
    state_of_class,
)

Encoded = Any
_CALLS_A_NODE = 10


class PutBack:
    """Restores values that `ScriptValues` read into the variables of a run of the same script."""

    def __init__(
        self,
        nodes: Sequence[Any],
        made: Sequence[Any],
        passes: Passes,
        moved: tuple[str, str] = ("", ""),
        adopts: Callable[[Any], None] = lambda made: None,
    ) -> None:
        """`moved` are the folder in which the script ran, and the one in which it runs now.

        `adopts` is called with objects that are made here in the script's place.
        """
        self._moved, self._adopts = moved, adopts
        self._nodes, self._made, self._passes = nodes, made, passes
        self._done: dict[int, Any] = {}
        self._taken: set[int] = set()
        # Start addresses of memory that stands for a saved one, or belongs to a module or an
        # optimizer.
        self._memories: set[int] = set()
        self._stepped: set[int] = set()
        # Cells of closures that have their content.
        self._filled: set[int] = set()
        for each in made:
            self._own(each)

    def _own(self, made: Any) -> None:
        tensors = [tensor for _, tensor in tensors_of(parts_of(made))] if _is_module(made) else []
        if isinstance(made, torch.optim.Optimizer):
            states = [dict(state).values() for state in made.state.values()]
            tensors += [each for state in states for each in state if type(each) is torch.Tensor]
            self._stepped.update(id(p) for group in made.param_groups for p in group["params"])
        for tensor in tensors:
            if tensor.layout is torch.strided and type(tensor) in TENSORS:
                self._memories.add(tensor.untyped_storage().data_ptr())

    def value(self, encoded: Encoded, existing: Any, path: str) -> Any:
        """Returns the value to bind. If `existing` fits, it is returned itself with its content
        restored.

        Raises `MismatchError`.
        """
        if not isinstance(encoded, tuple):
            return self._in_folder(encoded) if type(encoded) is str else encoded
        index = int(encoded[1])
        if index not in self._done:
            self._make(index, existing, path)
        return self._done[index]

    def _in_folder(self, text: str) -> str:
        """Moves a path in the folder in which the script ran to the folder in which it runs."""
        before, now = self._moved
        if before != now and (text == before or text.startswith(before + "/")):
            return now + text.removeprefix(before)
        return text

    def _make(self, index: int, existing: Any, path: str) -> None:
        node: dict[str, Any] = self._nodes[index]
        kind = node[KIND]
        maker = _MAKERS.get(kind)
        if maker is None:
            raise MismatchError(f"{path}: {kind} is not known")
        maker(self, index, node, existing, path)

    def _is(self, index: int, value: Any) -> Any:
        self._done[index] = value
        self._taken.add(id(value))
        return value

    def _fits(self, existing: Any, kind: type) -> bool:
        """Returns whether the object has the type and stands for no other one yet."""
        return type(existing) is kind and id(existing) not in self._taken

    def make_made(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing, path
        self._is(index, self._made[node["number"]])

    def make_part(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        self._is(index, self._part(node["of"], path))

    def _part(self, of: Any, path: str) -> torch.Tensor:
        number, name = of
        for known, tensor in tensors_of(parts_of(self._made[number])):
            if known == name:
                return tensor
        raise MismatchError(f"{path}: {type(self._made[number]).__name__} has no {name}")

    def make_of_optimizer(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing, path
        number, which, at = node["of"]
        optimizer = self._made[number]
        self._is(index, optimizer.param_groups[at] if which == "group" else vars(optimizer)[which])

    def make_inner_module(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        number, name = node["of"]
        try:
            self._is(index, self._made[number].get_submodule(name))
        except AttributeError as error:
            raise MismatchError(f"{path}: {error}") from None

    def make_module(self, index: int, node: Any, existing: Any, path: str) -> None:
        self.make_same(index, node, existing, path)
        self._put_parts(existing, node["parts"])

    def make_tensor(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind = torch.nn.Parameter if node["parameter"] else torch.Tensor
        fits = (
            self._fits(existing, kind)
            and existing.layout is torch.strided
            and layout(existing) == layout_of(node)
            and existing.is_leaf
            and existing.untyped_storage().nbytes() > 0
        )
        memory = self._memory(node, bytes_of(existing) if fits else None, path)
        storage = memory.untyped_storage()
        if fits and storage_key(existing) == storage_key_of(storage, memory.device):
            found = existing
        else:
            found = view_of(storage, memory.device, node)
            found = torch.nn.Parameter(found, False) if node["parameter"] else found
        self._is(index, found)
        if found.is_floating_point() or found.is_complex():
            found.requires_grad_(bool(node["learns"]))
        if "grad" in node:
            found.grad = self.value(node["grad"], found.grad, f"{path}.grad")
        elif id(found) not in self._stepped:
            found.grad = None

    def make_array(self, index: int, node: Any, existing: Any, path: str) -> None:
        owner = owner_of(existing) if self._fits(existing, np.ndarray) else None
        before = self._bytes_of_owner(owner)
        memory = self._memory(node, before, path)
        if owner is not None and before is not None and memory.data_ptr() == before.data_ptr():
            made = array_at(memory, node)
            place = made.ctypes.data == existing.ctypes.data or not made.size
            if place and array_layout(made) == array_layout(existing):
                self._is(index, existing)
                return
        self._is(index, array_at(memory, node))

    def _bytes_of_owner(self, owner: Any) -> torch.Tensor | None:
        if isinstance(owner, torch.Tensor):
            return bytes_of(owner)
        if owner is None or not owner.flags.writeable:
            return None
        whole = owner.flags.c_contiguous or owner.flags.f_contiguous
        return torch.from_numpy(bytes_of_array(owner)) if whole else None

    def _memory(self, node: Any, before: torch.Tensor | None, path: str) -> torch.Tensor:
        """Returns the bytes of a tensor's or an array's memory. `before` are those of its present
        memory.
        """
        if "of" in node:
            return bytes_of(self._part(node["of"], path))
        index = int(node["memory"][1])
        if index not in self._done:
            self._is(index, self._fill(self._nodes[index], before, path))
        return self._done[index]

    def _fill(self, node: Any, before: torch.Tensor | None, path: str) -> torch.Tensor:
        """Returns the memory. The existing one is used if it has the same size and stands for no
        other one yet.
        """
        if node[KIND] == "unchanged memory":
            if before is None:
                raise MismatchError(f"{path} was not made again")
            if before.numel() != node["bytes"] or digest_of(before) != node["digest"]:
                raise MismatchError(f"{path} is not what it was: the script made it otherwise")
            return self._takes(before)
        data: torch.Tensor = node["data"]
        if before is None or before.numel() != data.numel() or self._is_taken(before):
            return self._takes(data.clone())
        before.copy_(data)
        return self._takes(before)

    def _is_taken(self, memory: torch.Tensor) -> bool:
        return memory.data_ptr() in self._memories

    def _takes(self, memory: torch.Tensor) -> torch.Tensor:
        self._memories.add(memory.data_ptr())
        return memory

    def overlaps(self, saved: Sequence[Any]) -> None:
        """Raises `MismatchError` if memories that overlapped do not any more."""
        for one, other, distance in saved:
            first, second = self._done.get(one), self._done.get(other)
            if first is None or second is None:
                continue
            if second.data_ptr() - first.data_ptr() != distance:
                raise MismatchError("an array is no longer part of the memory of another one")

    def make_unchanged(self, index: int, node: Any, existing: Any, path: str) -> None:
        is_array = node["type"] == "array"
        digest = None
        if isinstance(existing, np.ndarray) if is_array else existing is not None:
            digest = digest_of(existing) if is_array else plain_digest(existing)
        if digest != node["digest"]:
            raise MismatchError(f"{path} is not what it was: the script made it otherwise")
        self._is(index, existing)

    def make_list(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind = CONTAINERS[node[KIND]]
        target: Any = existing if self._fits(existing, kind) else kind()
        self._is(index, target)
        self._fill_items(target, node, path)

    def _fill_items(self, target: Any, node: Any, path: str) -> None:
        """Uses the container's own methods, because a class of the script may have others."""
        values = self._entries(node["items"], list(target), path)
        if isinstance(target, collections.deque):
            collections.deque.__init__(target, values, node["most"])  # pyright: ignore
        elif isinstance(target, set):
            set.clear(target)  # pyright: ignore[reportUnknownMemberType]
            set.update(target, values)  # pyright: ignore[reportUnknownMemberType]
        else:
            list.__setitem__(target, slice(None), values)

    def make_bytearray(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        target: bytearray = existing if self._fits(existing, bytearray) else bytearray()
        target[:] = node["data"]
        self._is(index, target)

    def _entries(self, items: Sequence[Any], before: Sequence[Any], path: str) -> list[Any]:
        padded = [*before[: len(items)], *[None] * (len(items) - len(before))]
        return [
            self.value(entry, was, f"{path}[{at}]")
            for at, (entry, was) in enumerate(zip(items, padded, strict=True))
        ]

    def make_tuple(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind = {"tuple": tuple, "Size": torch.Size, "frozenset": frozenset}[node[KIND]]
        self._make_tuple(index, node, kind, existing, path)

    def _make_tuple(self, index: int, node: Any, kind: Any, existing: Any, path: str) -> None:
        before: Any = existing if type(existing) is kind else ()
        values = self._entries(node["items"], list(before), path)
        if index in self._done:
            return  # a value inside it references it, and reached it first
        ordered = kind is not frozenset and len(values) == len(before)
        same = ordered and type(existing) is kind and all(map(_is, values, before))
        of_script = issubclass(kind, tuple) and kind is not torch.Size
        make: Any = tuple.__new__ if of_script else kind.__new__
        self._is(index, existing if same else make(kind, values))

    def make_dict(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind = CONTAINERS[node[KIND]]
        target: Any = existing if self._fits(existing, kind) else kind()
        self._is(index, target)
        self._fill_dict(target, node, path)
        if kind is collections.OrderedDict:
            self._put_attributes(target, node.get("attributes", {}), path)

    def _fill_dict(self, target: Any, node: Any, path: str) -> None:
        if isinstance(target, collections.defaultdict):
            target.default_factory = self.value(
                node["factory"], target.default_factory, f"{path}.default_factory"
            )
        before = dict(target)
        values: list[tuple[Any, Any]] = []
        for key, entry in node["items"]:
            name = self.value(key, None, path)
            values.append((name, self.value(entry, before.get(name), f"{path}[{name!r:.40}]")))
        base: Any = collections.OrderedDict if _is_ordered(target) else dict
        if not _are_alike(list(before), [name for name, _ in values]):
            # With the same keys a loop over it continues.
            base.clear(target)
        for name, value in values:
            base.__setitem__(target, name, value)

    def make_object(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind: Any = self.value(node["class"], type(existing), path)
        if not is_plain_object(kind):
            raise MismatchError(f"{path} was a {name_of(kind)}, which cannot be made again")
        base = next((each for each in kind.__mro__ if each in BASES), object)
        if base is tuple:
            self._make_tuple(index, node, kind, existing, path)
            existing = self._done[index]
        else:
            existing = existing if self._fits(existing, kind) else base.__new__(kind)
            self._is(index, existing)
        if base is dict:
            self._fill_dict(existing, node, path)
        elif base not in (tuple, object):
            self._fill_items(existing, node, path)
        self._put_attributes(existing, node["attributes"], path)

    def _put_attributes(self, target: Any, saved: dict[str, Any], path: str) -> None:
        before = attributes(target)
        values = {
            name: self.value(entry, before.get(name), f"{path}.{name}")
            for name, entry in saved.items()
            if not self._is_made_later(entry, before.get(name))
        }
        for name in before:
            if name not in saved:
                object.__delattr__(target, name)
        set_attributes(target, before, values)

    def _is_made_later(self, encoded: Encoded, existing: Any) -> bool:
        """Returns whether only its library can read it, which makes it when needed."""
        by_library = isinstance(encoded, tuple) and self._nodes[int(encoded[1])][KIND] == LEFT
        return existing is None and by_library

    def make_same(self, index: int, node: Any, existing: Any, path: str) -> None:
        if name_of(type(existing)) != node["type"]:
            found = "nothing" if existing is None else f"a {type(existing).__name__}"
            raise MismatchError(f"{path} was a {node['type']} and is {found}")
        self._is(index, existing)

    def make_constant(self, index: int, node: Any, existing: Any, path: str) -> None:
        now = constant_text(existing)
        if now != node["text"]:
            raise MismatchError(f"{path} was {node['text']:.100}, and is {now:.100}")
        self._is(index, existing)

    def make_made_constant(self, index: int, node: Any, existing: Any, path: str) -> None:
        parts = [self.value(each, None, path) for each in node["parts"]]
        try:
            made = constant_of(node["type"], parts)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise MismatchError(f"{path}: a {node['type']} cannot be made: {error}") from None
        same = type(made) is type(existing)
        same = same and repr(constant_parts(made)) == repr(constant_parts(existing))
        self._is(index, existing if same else made)

    def make_member(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind: Any = found_global(node["class"])
        kind = type(existing) if kind is None else kind
        flags = node["value"] is not None
        try:
            found = kind(node["value"]) if flags else kind.__members__[node["name"]]
        except (LookupError, AttributeError, ValueError, TypeError):
            raise MismatchError(f"{path}: {node['class']} has no {node['name']}") from None
        self._is(index, found)
        for name, encoded in node["attributes"].items():
            before = vars(found).get(name)
            value = self.value(encoded, before, f"{path}.{name}")
            if value is not before:
                object.__setattr__(found, name, value)

    def make_function(self, index: int, node: Any, existing: Any, path: str) -> None:
        if node["name"] is not None:
            existing = found_global(node["name"])
        known = isinstance(existing, types.FunctionType)
        own = known and (node["name"] is None or is_of_script(existing))
        if not known or (own and code_key(existing) != node["code"]):
            found = "nothing" if existing is None else f"a {type(existing).__name__}"
            raise MismatchError(f"{path} was the function {node['code']}, and is {found}")
        if "cells" not in node:
            self._is(index, existing)
            return
        found = self._with_cells(node["cells"], existing)
        self._is(index, found)
        for encoded in node["cells"]:
            self._fill_cell(int(encoded[1]), path)
        self._put_attributes(found, node["attributes"], path)
        before: Any = found.__defaults__ or ()
        values = tuple(self._entries(node["defaults"], before, path))
        if len(values) != len(before) or not all(map(_is, values, before)):
            found.__defaults__ = values or None
        keywords: dict[str, Any] = found.__kwdefaults__ or {}
        for name, encoded in node["keywords"].items():
            keywords[name] = self.value(encoded, keywords.get(name), f"{path}.{name}")

    def _with_cells(self, saved: Sequence[Encoded], existing: Any) -> Any:
        """Returns the function, or another one of its code if its enclosed variables are shared
        differently.
        """
        taken = id(existing) in self._taken
        before: Sequence[Any] = existing.__closure__ or ()
        cells: list[Any] = []
        for encoded, cell in zip(saved, before, strict=True):
            index = int(encoded[1])
            if index not in self._done:
                self._is(index, types.CellType() if id(cell) in self._taken else cell)
            cells.append(self._done[index])
        if not taken and all(map(_is, cells, before)):
            return existing
        made = types.FunctionType(
            existing.__code__, existing.__globals__, existing.__name__, None, tuple(cells)
        )
        functools.update_wrapper(made, existing)
        made.__kwdefaults__ = dict(existing.__kwdefaults__ or {})
        return made

    def make_cell(self, index: int, node: Any, existing: Any, path: str) -> None:
        del node
        self._is(index, existing if self._fits(existing, types.CellType) else types.CellType())
        self._fill_cell(index, path)

    def _fill_cell(self, index: int, path: str) -> None:
        if index in self._filled:
            return
        self._filled.add(index)
        node, cell = self._nodes[index], self._done[index]
        if "value" not in node:
            return
        try:
            before = cell.cell_contents
        except ValueError:
            before = None
        cell.cell_contents = self.value(node["value"], before, path)

    def make_method(self, index: int, node: Any, existing: Any, path: str) -> None:
        is_method = isinstance(existing, types.MethodType)
        before = (existing.__self__, existing.__func__) if is_method else (None, None)
        owner, function = self._entries(node["parts"], before, path)
        same = is_method and owner is before[0] and function is before[1]
        self._is(index, existing if same else types.MethodType(function, owner))

    def make_builtin_method(self, index: int, node: Any, existing: Any, path: str) -> None:
        owner = self.value(node["self"], getattr(existing, "__self__", None), path)
        found = getattr(owner, node["name"], None)
        if found is None:
            raise MismatchError(f"{path}: {type(owner).__name__} has no {node['name']}")
        self._is(index, found)

    def make_count(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing, path
        self._is(index, itertools.count(node["next"], node["step"]))

    def make_global(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        found = found_global(node["name"])
        if found is None:
            raise MismatchError(f"{path}: there is no {node['name']}")
        self._is(index, found)

    def make_python_module(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        found = sys.modules.get(node["name"])
        if found is None:
            raise MismatchError(f"{path}: the script did not import {node['name']}")
        self._is(index, found)

    def make_partial(self, index: int, node: Any, existing: Any, path: str) -> None:
        fits = self._fits(existing, functools.partial)
        before = (existing.func, existing.args, existing.keywords) if fits else (None, None, None)
        function, arguments, keywords = self._entries(node["parts"], before, path)
        same = function is before[0] and arguments is before[1] and keywords is before[2]
        made = existing if same else functools.partial(function, *arguments, **keywords)
        self._is(index, made)

    def make_class(self, index: int, node: Any, existing: Any, path: str) -> None:
        if node["global"] is not None:
            existing = found_global(node["global"])
        if not isinstance(existing, type) or name_of(existing) != node["name"]:
            raise MismatchError(f"{path} was of the class {node['name']}, which is not there")
        self._is(index, existing)
        if "attributes" not in node:
            return
        if functions_of_class(existing) != node["functions"]:
            raise MismatchError(f"{path}: {node['name']} has other functions than it had")
        before = state_of_class(existing)
        for name, encoded in node["attributes"].items():
            value = self.value(encoded, before.get(name), f"{path}.{name}")
            if name not in before or value is not before[name]:
                setattr(existing, name, value)
        for name in before.keys() - node["attributes"].keys():
            delattr(existing, name)

    def make_weak(self, index: int, node: Any, existing: Any, path: str) -> None:
        before = existing() if isinstance(existing, weakref.ref) else None
        target: Any = self.value(node["to"], before, path)
        fits = isinstance(existing, weakref.ref) and before is target
        self._is(index, existing if fits else weakref.ref(_Gone() if target is None else target))

    def make_exception(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind: Any = self.value(node["class"], type(existing), path)
        if not issubclass(kind, BaseException):
            raise MismatchError(f"{path} was an exception")
        found = existing if self._fits(existing, kind) else kind.__new__(kind)
        self._is(index, found)
        found.args = self.value(node["args"], found.args, f"{path}.args")
        self._put_attributes(found, node["attributes"], path)

    def make_loader(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, DataLoader):
            raise MismatchError(f"{path} was a loader and is a {type(existing).__name__}")
        self._is(index, existing)
        loader: Any = existing
        of = Generators(loader)
        if node["begun"] and not is_begun(loader):
            self._passes.begin_workers(loader)
        of.restore(node["generators"])
        of.tell_epochs(node["epochs"])
        if of.orders() != node["orders"]:
            raise MismatchError(f"{path} has a sampler of other weights or indices than it had")
        for encoded, each in zip(node.get("own", ()), held_by_loader(loader), strict=False):
            self.value(encoded, each, path)

    def make_later_loader(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, DataLoader):
            raise MismatchError(f"{path} was a loader and is a {type(existing).__name__}")
        self._is(index, later_loaders.made_like(node["arguments"], existing))

    def make_later_optimizer(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        try:
            made = later_optimizers.empty(node["type"])
        except LookupError:
            raise MismatchError(f"{path} was a {node['type']}, which torch has not") from None
        self._is(index, made)
        defaults, groups = (self.value(node[name], None, path) for name in ("defaults", "groups"))
        state = [
            (self.value(one, None, path), self.value(kept, None, path))
            for one, kept in node["state"]
        ]
        later_optimizers.fill(made, defaults, groups, state)
        self._adopts(made)

    def make_builtin_iterator(self, index: int, node: Any, existing: Any, path: str) -> None:
        inner = [self.value(each, None, path) for each in node["inner"]]
        kind = ITERATORS[node["type"]]
        made: Any = kind(*inner) if kind in (enumerate, zip) else iter(inner[0])
        if node["state"] is not None:
            made.__setstate__(node["state"])
        del existing
        self._is(index, made)

    def make_iterator(self, index: int, node: Any, existing: Any, path: str) -> None:
        before = pass_of(existing).loader if pass_of(existing) is not None else None  # type: ignore[union-attr]
        loader = self.value(node["loader"], before, f"{path}'s loader")
        fits = before is loader and isinstance(existing, _BaseDataLoaderIter)
        iterator = existing if fits else iter(loader)
        self._passes.bring_one_back(iterator, node["pass"])
        self._is(index, iterator)

    def make_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        known = isinstance(existing, types.GeneratorType) and id(existing) not in self._taken
        if not known or code_key(existing) != node["code"]:
            raise MismatchError(f"{path} is not the generator {node['code']}")
        if node["halted"] is not None:
            HaltedAgain(node["halted"], self._passes, path).run(existing)
        elif inspect.getgeneratorstate(existing) != inspect.GEN_CREATED:
            raise MismatchError(f"{path} is a generator that has begun")
        self._is(index, existing)
        frame: Any = existing.gi_frame
        before = frame.f_locals
        set_variables(
            frame,
            {
                name: self.value(encoded, before.get(name), f"{path}'s {name}")
                for name, encoded in node["names"].items()
            },
        )

    def make_generator_over(self, index: int, node: Any, existing: Any, path: str) -> None:
        del node, path
        found = existing if self._fits(existing, types.GeneratorType) else (one for one in ())
        found.close()
        self._is(index, found)

    def make_torch_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        device = node["device"]
        fits = self._fits(existing, torch.Generator) and str(existing.device) == device
        found: Any = existing if fits else torch.Generator(device)
        found.set_state(node["state"])
        self._is(index, found)

    def make_bits(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind: Any = getattr(np.random, node["type"], None)
        if kind is None:
            raise MismatchError(f"{path}: there is no {node['type']}")
        found = existing if self._fits(existing, kind) else kind()
        found.state = node["state"]
        self._is(index, found)

    def make_numpy_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        fits = self._fits(existing, np.random.Generator)
        bits: Any = self.value(node["bits"], existing.bit_generator if fits else None, path)
        same = fits and existing.bit_generator is bits
        self._is(index, existing if same else np.random.Generator(bits))

    def make_legacy_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        fits = self._fits(existing, np.random.RandomState)
        found: Any = existing if fits else np.random.RandomState()
        found.set_state(node["state"])
        self._is(index, found)

    def make_buffer(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        kind = io.StringIO if isinstance(node["content"], str) else io.BytesIO
        found: Any = existing if self._fits(existing, kind) else kind()
        found.seek(0)
        found.truncate()
        found.write(node["content"])
        found.seek(node["at"])
        self._is(index, found)

    def make_closed_stream(self, index: int, node: Any, existing: Any, path: str) -> None:
        """A closed stream is of no more use, whichever file it was."""
        del path
        if name_of(type(existing)) != node["type"] or not existing.closed:
            existing = io.StringIO()
            existing.close()
        self._is(index, existing)

    def make_stream(self, index: int, node: Any, existing: Any, path: str) -> None:
        if name_of(type(existing)) != node["type"] or existing.closed:
            raise MismatchError(f"{path} was open for reading and is not")
        existing.seek(node["at"])
        self._is(index, existing)

    def make_random(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        found = existing if self._fits(existing, random.Random) else random.Random()  # noqa: S311
        found.setstate(node["state"])
        self._is(index, found)

    def modules(self, saved: Sequence[Any]) -> None:
        for each, described in zip(self._made, saved, strict=True):
            if described is None:
                continue
            if isinstance(each, torch.optim.Optimizer):
                self._put_own(each, attributes_of_optimizer(each), described)
                continue
            module: torch.nn.Module = each
            self._put_parts(module, described["parts"])
            for name, tensor in module.named_parameters():
                if tensor.is_leaf:
                    tensor.requires_grad_(bool(described["learns"].get(name, tensor.requires_grad)))
            self._put_buffers(module, described["buffers"])

    def _put_parts(self, module: torch.nn.Module, saved: dict[str, Any]) -> None:
        parts = dict(module.named_modules())
        if set(parts) != set(saved):
            raise MismatchError(f"{type(module).__name__} has other parts than were saved")
        for name, (training, extra) in saved.items():
            self._put_part(parts[name], training, extra)

    def _put_part(self, part: torch.nn.Module, training: bool, extra: dict[str, Any]) -> None:
        part.training = training
        self._put_own(part, attributes_of_module(part), extra)

    def _put_own(self, target: Any, now: dict[str, Any], saved: dict[str, Any]) -> None:
        own = vars(target)
        for key in now.keys() - saved.keys():
            del own[key]
        for key, encoded in saved.items():
            before = own.get(key)
            if self._is_made_later(encoded, before):
                continue
            value = self.value(encoded, before, f"{type(target).__name__}.{key}")
            if value is not before or key not in own:
                own[key] = value

    def _put_buffers(self, module: torch.nn.Module, saved: dict[str, torch.Tensor]) -> None:
        """Restores buffers that are in no state of the module. One may have grown."""
        for name, value in saved.items():
            owner, _, key = name.rpartition(".")
            buffers = module.get_submodule(owner)._buffers  # pyright: ignore[reportPrivateUsage]
            before = buffers.get(key)
            alike = before is not None and before.shape == value.shape
            if before is not None and alike and before.dtype == value.dtype:
                before.copy_(value)
            else:
                buffers[key] = value.clone()

    def stepped(self, saved: Sequence[Any]) -> None:
        for number, at, place, encoded in saved:
            optimizer = self._made[number]
            try:
                tensor = optimizer.param_groups[at]["params"][place]
            except (IndexError, AttributeError):
                text = f"{type(optimizer).__name__} has other parameters than were saved"
                raise MismatchError(text) from None
            if self.value(encoded, tensor, "a parameter") is not tensor:
                raise MismatchError(f"{type(optimizer).__name__} steps another tensor")


_MAKERS: dict[str, Callable[[PutBack, int, Any, Any, str], None]] = {
    "made": PutBack.make_made, "part": PutBack.make_part, "of optimizer": PutBack.make_of_optimizer,
    "inner module": PutBack.make_inner_module, "module": PutBack.make_module,
    "tensor": PutBack.make_tensor, "array": PutBack.make_array,
    "unchanged": PutBack.make_unchanged, "same": PutBack.make_same, LEFT: PutBack.make_same,
    "constant": PutBack.make_constant, "made constant": PutBack.make_made_constant,
    "member": PutBack.make_member, "global": PutBack.make_global,
    "builtin method": PutBack.make_builtin_method, "count": PutBack.make_count,
    "weak": PutBack.make_weak,
    "exception": PutBack.make_exception, "python module": PutBack.make_python_module,
    "bit generator": PutBack.make_bits, "legacy generator": PutBack.make_legacy_generator,
    "generator that is over": PutBack.make_generator_over, "function": PutBack.make_function,
    "cell": PutBack.make_cell, "method": PutBack.make_method, "partial": PutBack.make_partial,
    "class": PutBack.make_class, "loader": PutBack.make_loader,
    later_loaders.LATER: PutBack.make_later_loader,
    later_optimizers.LATER: PutBack.make_later_optimizer,
    "builtin iterator": PutBack.make_builtin_iterator,
    "iterator": PutBack.make_iterator, "generator": PutBack.make_generator,
    "torch generator": PutBack.make_torch_generator,
    "numpy generator": PutBack.make_numpy_generator, "random": PutBack.make_random,
    "object": PutBack.make_object, "buffer": PutBack.make_buffer, "stream": PutBack.make_stream,
    "closed stream": PutBack.make_closed_stream,
    "list": PutBack.make_list, "set": PutBack.make_list, "deque": PutBack.make_list,
    "bytearray": PutBack.make_bytearray, "tuple": PutBack.make_tuple,
    "frozenset": PutBack.make_tuple, "Size": PutBack.make_tuple,
    "dict": PutBack.make_dict, "OrderedDict": PutBack.make_dict,
    "Counter": PutBack.make_dict, "defaultdict": PutBack.make_dict,
}  # fmt: skip


# Node types that need no object of the script.
_SELF_CONTAINED = {"tensor", "memory", "array", "made constant", "tuple", *CONTAINERS}
_CONTAINED_MAX = 10_000


def is_self_contained(encoded: Any, nodes: Sequence[Any]) -> bool:
    """Returns whether a value can be made without any object of the script."""
    waiting, seen = [encoded], set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, tuple) and len(each) == 2 and each[0] == "r":
            node = nodes[each[1]]
            if node[KIND] not in _SELF_CONTAINED or "of" in node or len(seen) > _CONTAINED_MAX:
                return False
            if each[1] not in seen:
                seen.add(each[1])
                waiting.append({name: value for name, value in node.items() if name != "data"})
        elif isinstance(each, (list, tuple)):
            waiting += each
    return True


def _is_module(made: Any) -> bool:
    return isinstance(made, torch.nn.Module)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _are_alike(before: list[Any], after: list[Any]) -> bool:
    """Compares types too, because 1 is not True."""
    same = len(before) == len(after)
    return same and all(
        type(one) is type(other) and one == other for one, other in zip(before, after, strict=True)
    )


def _is_ordered(target: Any) -> bool:
    return isinstance(target, collections.OrderedDict)


class _Gone:
    """Stands for an object that nothing holds, so that a weak reference to it is dead."""


@contextlib.contextmanager
def deep_calls(nodes: Sequence[Any]) -> Generator[None]:
    """Raises the recursion limit. Nested values are restored in nested calls, and a linked list may
    have many.

    These are calls of Python functions, which take nothing from the C stack.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + _CALLS_A_NODE * len(nodes))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
