"""The values of a script's variables as plain values and tensors, and how they are restored.

Everything that can be reached from the variables is one table of nodes. An object that is reached
twice is one node, so that shared objects are shared again. Values are restored into existing
objects if there are any, because others may reference them.

Values that were large before the first step and are unchanged are not saved. The script makes them
again, and their hashes are compared. A value that cannot be read is a reason not to save at all.
"""

import collections
import contextlib
import enum
import functools
import inspect
import io
import itertools
import random
import re
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume import later_loaders, later_optimizers
from gpujob_worker.resume.halted import described
from gpujob_worker.resume.passes import Passes, pass_of
from gpujob_worker.resume.persistent_workers import is_begun, memory_refusal
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.tensor_memory import (
    Parts,
    address_key,
    bytes_of,
    bytes_of_array,
    digest_of,
    may_go_backward,
    owner_of,
    parts_of,
    plain_digest,
    storage_key,
    structure_of,
    tensors_of,
    unsaved_buffers,
)
from gpujob_worker.resume.value_kinds import (
    AROUND_DATA,
    AS_IT_IS,
    BASES,
    CONSTANT,
    CONTAINERS,
    ITERATORS,
    KIND,
    LEFT,
    MEMBER_OWN,
    PLAIN,
    READ,
    TENSORS,
    attributes,
    attributes_of_module,
    attributes_of_optimizer,
    code_key,
    constant_parts,
    constant_text,
    functions_of_class,
    global_name,
    held_by_loader,
    inner_containers,
    is_of_script,
    is_plain_object,
    keeps_order,
    learns_nothing,
    name_of,
    state_of_class,
)

NODES_MAX = 300_000
# A value of at least this size that did not change is made again by the script.
LARGE_BYTES = 1 << 16
LARGE_ITEMS = 5_000

Encoded = Any
Names = dict[str, Any]


class Baseline:
    """Large values as they were before the first step, by hash.

    Writes to memory that bypass torch (`tensor.data`, an array of the same memory) are counted
    nowhere.
    """

    def __init__(self) -> None:
        # By memory: its hash, and the names under which a resume finds it again.
        self._memory: dict[int, tuple[str, set[str]]] = {}
        self._containers: dict[int, str] = {}
        self.names: dict[tuple[str, str], int] = {}
        # By name: the objects from which a later loader must be made.
        self.loaders: dict[str, tuple[int, ...]] = {}
        # Values that cannot be made again: where they were, and what they were.
        self.made: set[tuple[str, str]] = set()
        # Another object may get the identity of one that is gone.
        self._structures: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def sees_structure(self, made: Any) -> None:
        parts = parts_of(made) if isinstance(made, torch.nn.Module) else []
        self._structures[id(made)] = weakref.ref(made), structure_of(made, parts)

    def has_other_structure(self, made: Any, parts: Parts) -> bool:
        """Returns whether it is known, and was made of other parts than these."""
        reference, before = self._structures.get(id(made), (None, None))
        known = reference is not None and reference() is made
        return known and structure_of(made, parts) != before

    def sees_memory(self, key: int, path: str, content: Any) -> None:
        digest, paths = self._memory.get(key) or (digest_of(content), set[str]())
        self._memory[key] = digest, paths | {path}

    def sees_container(self, value: Any, digest: str) -> None:
        self._containers[id(value)] = digest

    def has_memory(self, key: int, path: str) -> bool:
        """Returns whether there was such a memory, which a resume finds under the same name."""
        return key in self._memory and path in self._memory[key][1]

    def is_unchanged_memory(self, key: int, digest: str) -> bool:
        return key in self._memory and self._memory[key][0] == digest

    def is_unchanged_container(self, value: Any, digest: str) -> bool:
        return self._containers.get(id(value)) == digest


class ScriptValues:
    """Reads the values of a script's variables into a table of nodes."""

    def __init__(
        self,
        made: Sequence[Any],
        baseline: Baseline,
        lost: Sequence[Any] = (),
        *,
        passes: Passes | None = None,
        first: bool = False,
    ) -> None:
        """`made` are the script's modules, optimizers and the like, which are saved separately.

        `lost` are those that a resume does not make again. With `first`, only large values are
        read, into the baseline.
        """
        self._lost = {id(each) for each in lost}
        self._passes = passes
        # Loops of halted generators, which have to begin elsewhere too.
        self.lines: list[tuple[str, int]] = []
        self.nodes: list[Any] = []
        self._baseline, self._first = baseline, first
        self._made = {id(each): number for number, each in enumerate(made)}
        # The parts of a module that is made, by the module's identity.
        self._inside: dict[int, Parts] = {}
        self._parts: dict[int, tuple[int, str]] = {}
        self._inner: dict[int, tuple[int, str]] = {}
        self._part_storages: dict[int, tuple[int, str]] = {}
        self._known: dict[int, int] = {}
        self._memories: dict[int, int] = {}
        # By content of containers that are not saved: the container.
        self._within: dict[int, tuple[Any, str]] = {}
        # Where memories of the CPU begin and end, with their indices.
        self._spans: list[tuple[int, int, int]] = []
        self._alive: list[Any] = []
        # Parts of optimizers, and tensors whose gradients `ScriptGradients` keeps.
        self._of_optimizers: dict[int, tuple[int, str, int]] = {}
        self._stepped: set[int] = set()
        self._waiting: collections.deque[tuple[int, Any, str, bool]] = collections.deque()
        # Whether an object of a library has the described value, and a module or a loader has that
        # object.
        self._of_library = False
        for number, each in enumerate(made):
            if isinstance(each, torch.nn.Module):
                self._own_parts(number, each)
            if isinstance(each, torch.optim.Optimizer):
                self._own_groups(number, each)

    def _own_parts(self, number: int, module: torch.nn.Module) -> None:
        parts = self._inside[id(module)] = parts_of(module)
        for name, tensor in tensors_of(parts):
            self._parts.setdefault(id(tensor), (number, name))
            if type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.numel():
                self._part_storages.setdefault(storage_key(tensor), (number, name))
        for name, part in parts:
            self._inner.setdefault(id(part), (number, name))

    def _own_groups(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        """Registers what the optimizer replaces when it loads a state."""
        self._of_optimizers[id(optimizer.state)] = number, "state", 0
        self._of_optimizers[id(optimizer.param_groups)] = number, "param_groups", 0
        for at, group in enumerate(optimizer.param_groups):
            self._of_optimizers[id(group)] = number, "group", at
            self._stepped.update(map(id, group["params"]))

    def names(self, scope: str, variables: Names) -> Names:
        """Returns the variables' values, encoded.

        Raises `UnsavableError` for a value that cannot be read, and then drops its nodes.
        """
        found: Names = {}
        for name, value in variables.items():
            if self._stays(scope, name, value):
                continue
            known = 0 if self._first else len(self.nodes)
            try:
                found[name] = self.encode(value, name)
                self._read()
            except BaseException:
                self._forget(known)
                raise
            if self._first:
                # A later read may reach a value of two variables by either of them.
                self._forget(known)
        return found

    def _forget(self, known: int) -> None:
        """Drops all nodes except the first ones."""
        self._waiting.clear()
        del self.nodes[known:]
        self._spans = [span for span in self._spans if span[2] < known]
        for table in (self._known, self._memories):
            for key in [key for key, index in table.items() if index >= known]:
                del table[key]
        self._within = {key: of for key, of in self._within.items() if id(of[0]) in self._known}

    def encode(self, value: Any, path: str) -> Encoded:
        if type(value) in PLAIN or isinstance(value, np.generic):
            return value
        if id(value) in self._within:
            self._read_whole(*self._within[id(value)])
        index = self._known.get(id(value))
        if index is not None and not self._of_library and _is_left(self.nodes[index]):
            # A variable of the script has it too.
            self.nodes[index] = self._describe(value, path)
        if index is None:
            index = self._known[id(value)] = len(self.nodes)
            if index >= NODES_MAX:
                raise UnsavableError(f"its variables hold more than {NODES_MAX} values")
            self._alive.append(value)
            self.nodes.append(None)
            self._waiting.append((index, value, path, self._of_library))
        return ("r", index)

    def _read_whole(self, container: Any, path: str) -> None:
        """Reads a container whose content is referenced elsewhere too, so that a resume can find it
        inside.
        """
        self._within = {key: of for key, of in self._within.items() if of[0] is not container}
        self.nodes[self._known[id(container)]] = self._whole_container(container, path)

    def _read(self) -> None:
        try:
            while self._waiting:
                index, value, path, self._of_library = self._waiting.popleft()
                self.nodes[index] = self._describe(value, path)
        finally:
            self._of_library = False

    def _stays(self, scope: str, name: str, value: Any) -> bool:
        """Returns whether the variable has the value from before the first step, and that has no
        state.
        """
        stateless = isinstance(value, types.ModuleType) or (
            isinstance(value, (types.FunctionType, type)) and not is_of_script(value)
        )
        if self._first:
            self._baseline.names[scope, name] = id(value)
            return stateless
        same = self._baseline.names.get((scope, name)) == id(value)
        return stateless and (same or (scope, name) not in self._baseline.names)

    def _describe(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        if id(value) in self._made:
            return {KIND: "made", "number": self._made[id(value)]}
        if id(value) in self._lost and later_optimizers.is_of_torch(value):
            return self._later_optimizer(value, path)
        if id(value) in self._lost and not isinstance(value, DataLoader):
            raise UnsavableError(f"{path} is a {_kind_name(value)} of another turn of the loop")
        if id(value) in self._of_optimizers:
            return {KIND: "of optimizer", "of": self._of_optimizers[id(value)]}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, torch.nn.Module):
            return self._module(value, path)
        reader = _READERS.get(kind)
        if reader is not None:
            return reader(self, value, path)
        for of, read in _READERS_OF_BASES:
            if isinstance(value, of):
                return read(self, value, path)
        return self._object(value, path)

    def _tensor(self, value: torch.Tensor, path: str) -> dict[str, Any]:
        if type(value) not in TENSORS:
            raise UnsavableError(f"{path} is a {name_of(type(value))}")
        part = self._parts.get(id(value))
        if part is not None:
            return {KIND: "part", "of": part}
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            raise UnsavableError(f"{path} is a tensor of {value.dtype} in {value.layout}")
        node: dict[str, Any] = {
            KIND: "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "size": tuple(value.size()),
            "stride": value.stride(),
            "offset": value.storage_offset(),
            "conjugated": bool(value.is_conj()),
            "negated": bool(value.is_neg()),
            "learns": value.is_leaf and value.requires_grad,
            "parameter": isinstance(value, torch.nn.Parameter),
        }
        if value.grad_fn is not None and may_go_backward(value.grad_fn):
            raise UnsavableError(
                f"{path} is a tensor through which a backward pass may still go: its graph cannot"
                " be saved; keep .detach() or .item() of it"
            )
        if value.is_leaf and value.grad is not None and id(value) not in self._stepped:
            node["grad"] = self.encode(value.grad, f"{path}.grad")
        return {**node, **self._memory_of_tensor(value, path)}

    def _memory_of_tensor(self, value: torch.Tensor, path: str) -> dict[str, Any]:
        """Returns the memory of a tensor: that of a module, or its own."""
        key = storage_key(value)
        if value.untyped_storage().nbytes() and key in self._part_storages:
            return {"of": self._part_storages[key]}
        return {"memory": self._memory(key, bytes_of(value), path)}

    def _memory(self, key: int, content: Any, path: str) -> Encoded:
        """Returns the node of a memory, once for all that share it. `content` are its bytes, as a
        tensor or an array.
        """
        index = self._memories.get(key) if len(content) else None
        if index is None:
            index = self._memories[key] = len(self.nodes)
            self._alive.append(content)
            self._note_span(content, index)
            self.nodes.append(None)
            self.nodes[index] = self._describe_memory(key, content, path)
        return ("r", index)

    def _note_span(self, content: Any, index: int) -> None:
        on_device = isinstance(content, torch.Tensor) and content.device.type != "cpu"
        if len(content) and not on_device:
            start = content.ctypes.data if isinstance(content, np.ndarray) else content.data_ptr()
            self._spans.append((start, start + len(content), index))

    def overlaps(self) -> list[tuple[int, int, int]]:
        """Returns overlapping memories, such as that of `torch.from_numpy(array[3:])`.

        Each entry has both, and the bytes from the beginning of the first to that of the second.
        """
        found: list[tuple[int, int, int]] = []
        widest = (0, 0, 0)
        for span in sorted(self._spans):
            if span[0] < widest[1]:
                found.append((widest[2], span[2], span[0] - widest[0]))
            if span[1] > widest[1]:
                widest = span
        return found

    def _describe_memory(self, key: int, content: Any, path: str) -> dict[str, Any]:
        if len(content) >= LARGE_BYTES:
            if self._first:
                self._baseline.sees_memory(key, path, content)
                return {}
            if self._baseline.has_memory(key, path):
                digest = digest_of(content)
                if self._baseline.is_unchanged_memory(key, digest):
                    return {KIND: "unchanged memory", "bytes": len(content), "digest": digest}
        if isinstance(content, np.ndarray):
            content = torch.from_numpy(content if content.flags.writeable else content.copy())
        return {KIND: "memory", "data": content}

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        descr = np.lib.format.dtype_to_descr(value.dtype) if not value.dtype.hasobject else None
        if descr is None or np.lib.format.descr_to_dtype(descr) != value.dtype:
            raise UnsavableError(f"{path} is an array of {value.dtype}")
        owner = owner_of(value)
        node: dict[str, Any] = {
            KIND: "array",
            "dtype": descr,
            "size": value.shape,
            "stride": value.strides,
            "writeable": bool(value.flags.writeable),
        }
        if isinstance(owner, torch.Tensor):
            start = owner.untyped_storage().data_ptr()
            where = self._memory_of_tensor(owner, path)
        elif owner.flags.c_contiguous or owner.flags.f_contiguous:
            start = owner.ctypes.data
            key = address_key(start, owner.nbytes, "cpu")
            where = {"memory": self._memory(key, bytes_of_array(owner), path)}
        else:
            raise UnsavableError(f"{path} is an array of a memory with gaps")
        return {**node, **where, "offset": value.ctypes.data - start if value.size else 0}

    def _container(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value).__name__
        if len(value) >= LARGE_ITEMS:
            digest = plain_digest(value)
            if digest is not None and self._first:
                self._baseline.sees_container(value, digest)
                return {}
            if digest is not None and self._baseline.is_unchanged_container(value, digest):
                inner = inner_containers(value)
                if self._known.keys().isdisjoint(inner):
                    self._within.update(dict.fromkeys(inner, (value, path)))
                    return {KIND: "unchanged", "type": kind, "digest": digest}
        return self._whole_container(value, path)

    def _whole_container(self, value: Any, path: str) -> dict[str, Any]:
        described = {KIND: type(value).__name__, **self._content(value, path)}
        if isinstance(value, collections.OrderedDict) and vars(value):
            described["attributes"] = self._attributes(vars(value), path)
        return described

    def _content(self, value: Any, path: str) -> dict[str, Any]:
        """Returns the content of a container, or of an object that is one."""
        described: dict[str, Any] = {"items": self._items(value, path)}
        if isinstance(value, collections.deque):
            described["most"] = cast("Any", value).maxlen
        if isinstance(value, collections.defaultdict):
            factory = cast("Any", value).default_factory
            described["factory"] = self.encode(factory, f"{path}.default_factory")
        return described

    def _attributes(self, values: Names, path: str) -> Names:
        return {name: self.encode(each, f"{path}.{name}") for name, each in values.items()}

    def _items(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, (set, frozenset)) and not keeps_order(value):
            raise UnsavableError(f"{path} is a set of numbers in an order that no other set gets")
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value).items()
            return [
                (self.encode(key, path), self.encode(entry, f"{path}[{key!r:.40}]"))
                for key, entry in pairs
            ]
        return [self.encode(entry, f"{path}[{at}]") for at, entry in enumerate(value)]

    def _function(self, value: Any, path: str) -> dict[str, Any]:
        name, code = global_name(value), code_key(value)
        node: dict[str, Any] = {KIND: "function", "name": name, "code": code}
        if name is None and self._of_library and not is_of_script(value):
            return self._left(value)
        if name is None:
            self._is_made_before(path, code)
        if not is_of_script(value):
            return node
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        defaults: Names = value.__kwdefaults__ or {}
        return {
            **node,
            "cells": [self.encode(cell, f"{path}.{name}") for name, cell in cells],
            "attributes": self._attributes(vars(value), path),
            "defaults": [self.encode(each, path) for each in value.__defaults__ or ()],
            "keywords": self._attributes(defaults, path),
        }

    def _cell(self, value: types.CellType, path: str) -> dict[str, Any]:
        try:
            return {KIND: "cell", "value": self.encode(value.cell_contents, path)}
        except ValueError:
            return {KIND: "cell"}

    def _method(self, value: Any, path: str) -> dict[str, Any]:
        parts = (value.__self__, value.__func__)
        return {KIND: "method", "parts": [self.encode(each, path) for each in parts]}

    def _builtin(self, value: Any, path: str) -> dict[str, Any]:
        name = global_name(value)
        if name is not None:
            return {KIND: "global", "name": name}
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            if self._of_library:
                return self._left(value)
            raise UnsavableError(f"{path} is the function {value.__name__} of an unknown module")
        own = self.encode(owner, path)
        return {KIND: "builtin method", "self": own, "name": value.__name__}

    def _of_object(self, value: Any, path: str) -> dict[str, Any]:
        """Returns a method that Python's own class gives its objects, such as `__next__` of a
        counter.
        """
        own = self.encode(value.__self__, path)
        return {KIND: "builtin method", "self": own, "name": value.__name__}

    def _partial(self, value: Any, path: str) -> dict[str, Any]:
        parts = (value.func, value.args, value.keywords)
        return {KIND: "partial", "parts": [self.encode(each, path) for each in parts]}

    def _class(self, value: Any, path: str) -> dict[str, Any]:
        """Returns the values that the script keeps in its classes, and only the identity of
        functions.
        """
        node: dict[str, Any] = {KIND: "class", "name": name_of(value), "global": global_name(value)}
        if is_of_script(value) and not issubclass(value, enum.Enum):
            own = state_of_class(value)
            node["attributes"] = self._attributes(own, path)
            node["functions"] = functions_of_class(value)
        return node

    def same(self, value: Any, path: str) -> dict[str, Any]:
        """Returns a value that the script makes again and that no step changes."""
        name = name_of(type(value))
        self._is_made_before(path, name)
        return {KIND: "same", "type": name}

    def _left(self, value: Any) -> dict[str, Any]:
        """Returns a value in a library's object that only the library can read, and makes again."""
        return {KIND: LEFT, "type": name_of(type(value))}

    def _is_made_before(self, path: str, what: str) -> None:
        """Checks that a resume finds the value there, because the script makes it before
        it trains.
        """
        if self._first:
            self._baseline.made.add((path, what))
        elif (path, what) not in self._baseline.made:
            raise UnsavableError(f"{path} is {what}, which the script made while it trained")

    def _weak(self, value: Any, path: str) -> dict[str, Any]:
        return {KIND: "weak", "to": self.encode(value(), path)}

    def _exception(self, value: Any, path: str) -> dict[str, Any]:
        args = self.encode(value.args, f"{path}.args")
        attributes = self._attributes(vars(value), path)
        return {
            KIND: "exception",
            "class": self.encode(type(value), path),
            "args": args,
            "attributes": attributes,
        }

    def _member(self, value: enum.Enum, path: str) -> dict[str, Any]:
        """Returns a member of an enumeration. Some scripts keep changing values in members."""
        own = {name: each for name, each in vars(value).items() if name not in MEMBER_OWN}
        return {
            KIND: "member",
            "class": name_of(type(value)),
            "name": value.name,
            "value": value.value if isinstance(value, enum.Flag) else None,
            "attributes": self._attributes(own, path),
        }

    def _constant(self, value: Any, path: str) -> dict[str, Any]:
        parts = constant_parts(value)
        if parts is None:
            return {KIND: "constant", "text": constant_text(value)}
        return {
            KIND: "made constant",
            "type": name_of(type(value)),
            "parts": [self.encode(each, path) for each in parts],
        }

    def _bits(self, value: Any, path: str) -> dict[str, Any]:
        del path
        return {KIND: "bit generator", "type": type(value).__name__, "state": value.state}

    def _numpy_generator(self, value: Any, path: str) -> dict[str, Any]:
        return {KIND: "numpy generator", "bits": self.encode(value.bit_generator, path)}

    def _loader(self, value: Any, path: str) -> dict[str, Any]:
        of = Generators(value)
        why = memory_refusal(value)
        if why is not None:
            raise UnsavableError(f"{path}: {why}")
        if self._first:
            self._baseline.loaders[path] = later_loaders.origin_of(value)
        if id(value) in self._lost or later_loaders.is_put_back(value):
            return self._later_loader(value, path)
        described: dict[str, Any] = {
            KIND: "loader",
            "generators": of.states(),
            "epochs": of.epochs(),
            "orders": of.orders(),
            "begun": is_begun(value),
        }
        if self._first and isinstance(value.dataset, torch.utils.data.TensorDataset):
            return described
        described["own"] = [
            self._kept(each, each, f"{path}.{type(each).__name__}")
            for each in held_by_loader(value)
        ]
        return described

    def _kept(self, owner: Any, value: Any, path: str) -> Encoded:
        """Returns a value of a module, an optimizer or a loader. The owner decides whether it is
        the script's.
        """
        before = self._of_library
        self._of_library = before or not is_of_script(type(owner))
        try:
            return self.encode(value, path)
        finally:
            self._of_library = before

    def _later_loader(self, value: Any, path: str) -> dict[str, Any]:
        arguments = later_loaders.arguments_of(value)
        if arguments is None or self._baseline.loaders.get(path) != later_loaders.origin_of(value):
            raise UnsavableError(f"{path} is a {_kind_name(value)} of another turn of the loop")
        return {KIND: later_loaders.LATER, "arguments": arguments}

    def _later_optimizer(self, value: Any, path: str) -> dict[str, Any]:
        return {
            KIND: later_optimizers.LATER,
            "type": type(value).__name__,
            "defaults": self.encode(value.defaults, path),
            "groups": self.encode(value.param_groups, path),
            "state": [
                (self.encode(tensor, path), self.encode(kept, path))
                for tensor, kept in value.state.items()
            ],
        }

    def _generator(self, value: Any, path: str) -> dict[str, Any]:
        state = inspect.getgeneratorstate(value)
        if state == inspect.GEN_CLOSED:
            return {KIND: "generator that is over"}
        key = code_key(value)
        self._is_made_before(path, key)
        if self._passes is None:
            return {}
        halted = None
        if state != inspect.GEN_CREATED:
            halted = described(value, self._passes, path)
        if halted is not None:
            self.lines += [(halted["file"], loop["line"]) for loop in halted["loops"]]
        names = {
            name: self.encode(each, f"{path}'s {name}")
            for name, each in value.gi_frame.f_locals.items()
        }
        return {KIND: "generator", "code": key, "halted": halted, "names": names}

    def _of_container(self, value: Any, path: str) -> dict[str, Any]:
        """Returns an iterator of Python's own containers, as it describes itself to `copy`."""
        _, inner, *state = value.__reduce__()
        return {
            KIND: "builtin iterator",
            "type": type(value).__name__,
            "inner": [self.encode(each, f"what {path} goes over") for each in inner],
            "state": state[0] if state else None,
        }

    def _iterator(self, value: Any, path: str) -> dict[str, Any]:
        record = pass_of(value)
        if record is None or record.loader is None:
            raise UnsavableError(f"{path} is an iterator of a loader that is gone")
        own = record.own_sampler
        if own is not None:
            raise UnsavableError(f"{path}: {own} of the script may draw the order of a pass anew")
        loader = self.encode(record.loader, f"{path}'s loader")
        return {KIND: "iterator", "pass": record.state(record.fetched), "loader": loader}

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        name = name_of(kind)
        own = is_of_script(kind)
        if self._of_library and not own and self._only_library_reads(kind):
            return self._left(value)
        if name not in READ and learns_nothing(kind) and not isinstance(value, AROUND_DATA):
            return self.same(value, path)
        if isinstance(value, Dataset) and not own and not self._of_library:
            self._is_made_before(path, name)
            if not is_plain_object(kind):
                return self.same(value, path)
            self._of_library = True
        self._of_library = self._of_library and not own
        described: dict[str, Any] = {KIND: "object", "class": self.encode(kind, path)}
        base = next((each for each in kind.__mro__ if each in BASES), None)
        if not is_plain_object(kind):
            raise UnsavableError(f"{path} is a {name}, which keeps what cannot be read")
        if base is not None:
            described |= {"base": base.__name__, **self._content(value, path)}
        described["attributes"] = self._attributes(attributes(value), path)
        return described

    def _only_library_reads(self, kind: type) -> bool:
        read = name_of(kind) in READ or issubclass(kind, AROUND_DATA)
        return not read and (learns_nothing(kind) or not is_plain_object(kind))

    def modules(self, made: Sequence[Any]) -> list[Any]:
        """Returns what modules have besides parameters and buffers (flags and attributes), and the
        same of optimizers.
        """
        found: list[Any] = []
        for each in made:
            if isinstance(each, torch.optim.Optimizer):
                own = self._attributes_of(each, attributes_of_optimizer(each))
                self._read()
                found.append(own)
                continue
            if not isinstance(each, torch.nn.Module):
                found.append(None)
                continue
            parts = self._parts_of(each)
            self._read()
            inside = self._inside[id(each)]
            tensors = tensors_of(inside)
            learns = {
                name: tensor.requires_grad
                for name, tensor in tensors
                if isinstance(tensor, torch.nn.Parameter)
            }
            found.append(
                {"parts": parts, "learns": learns, "buffers": unsaved_buffers(each, inside)}
            )
        return found

    def sees_kept(self, made: Sequence[Any]) -> None:
        for each in made:
            with contextlib.suppress(UnsavableError, RecursionError):
                self.modules([each])
            self._forget(0)

    def _module(self, value: torch.nn.Module, path: str) -> dict[str, Any]:
        """Returns a part of a module that is saved, or a module without its own state."""
        name = name_of(type(value))
        if id(value) in self._inner:
            return {KIND: "inner module", "of": self._inner[id(value)]}
        return {KIND: "module", "type": name, "parts": self._parts_of(value)}

    def _parts_of(self, module: torch.nn.Module) -> dict[str, Any]:
        return {
            name: (part.training, self._attributes_of(part, attributes_of_module(part)))
            for name, part in self._inside.get(id(module)) or parts_of(module)
        }

    def _attributes_of(self, owner: Any, values: Names) -> Names:
        kind = _kind_name(owner)
        return {
            name: each if type(each) in PLAIN else self._kept(owner, each, f"{kind}.{name}")
            for name, each in values.items()
        }

    def structures(self, made: Sequence[Any]) -> None:
        """Raises `UnsavableError` for an object that got other parts than a resume gives it."""
        for each in made:
            if self._baseline.has_other_structure(each, self._inside.get(id(each), [])):
                raise UnsavableError(
                    f"{_kind_name(each)} got other parts or parameters while the script trained"
                )

    def stepped(self, made: Sequence[Any]) -> list[Any]:
        """Returns tensors that optimizers step and no module has."""
        found: list[Any] = []
        for number, each in enumerate(made):
            if not isinstance(each, torch.optim.Optimizer):
                continue
            for at, group in enumerate(each.param_groups):
                for place, tensor in enumerate(group["params"]):
                    if id(tensor) not in self._parts:
                        path = f"a parameter of {type(each).__name__}"
                        found.append((number, at, place, self.encode(tensor, path)))
        self._read()
        return found


def _is_left(node: Any) -> bool:
    return node is not None and node.get(KIND) == LEFT


def see_kept(made: Sequence[Any], baseline: Baseline) -> None:
    """Records values of modules and optimizers, besides their states, that only the script can
    make.

    Large values are not recorded, because a forward pass may have made them and a resume makes
    none.
    """
    seen = Baseline()
    ScriptValues(made, seen, first=True).sees_kept(made)
    baseline.made |= seen.made


def _kind_name(value: Any) -> str:
    return type(value).__name__


def _torch_generator(values: ScriptValues, value: torch.Generator, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "torch generator", "state": value.get_state(), "device": str(value.device)}


def _legacy_generator(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "legacy generator", "state": value.get_state(legacy=False)}


def _module(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "python module", "name": value.__name__}


def _bytearray(values: ScriptValues, value: bytearray, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "bytearray", "data": bytes(value)}


def _stream(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    """Returns a stream. A written one is handled by its file, and a read one continues at its
    position.
    """
    if isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
        return {KIND: "buffer", "content": value.getvalue(), "at": value.tell()}
    if value.closed:
        return {KIND: "closed stream", "type": name_of(type(value))}
    if not value.readable():
        return _same(values, value, path)
    try:
        return {KIND: "stream", "type": name_of(type(value)), "at": value.tell()}
    except (OSError, ValueError) as error:
        raise UnsavableError(f"{path} is read from a place that is not known: {error}") from None


def _count(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    """Returns a counter, whose next number is only in its text."""
    del values
    numbers = re.fullmatch(r"count\((-?\d+)(?:, (-?\d+))?\)", repr(value))
    if numbers is None:
        raise UnsavableError(f"{path} is a counter of other than whole numbers")
    return {KIND: "count", "next": int(numbers[1]), "step": int(numbers[2] or 1)}


def _random(values: ScriptValues, value: random.Random, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "random", "state": value.getstate()}


def _same(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    return values.same(value, path)


_Reader = Callable[[ScriptValues, Any, str], dict[str, Any]]
# pyright: reportPrivateUsage=false
_READERS: dict[type, _Reader] = {
    **dict.fromkeys((*CONTAINERS.values(), tuple, frozenset, torch.Size), ScriptValues._container),
    bytearray: _bytearray,
    np.ndarray: ScriptValues._array,
    types.CellType: ScriptValues._cell,
    # Scripts have many of these, and the bases below are checked one by one.
    types.FunctionType: ScriptValues._function,
    types.ModuleType: _module,
    type: ScriptValues._class,
    **dict.fromkeys(ITERATORS.values(), ScriptValues._of_container),
    types.GeneratorType: ScriptValues._generator,
    types.MethodType: ScriptValues._method,
    types.BuiltinFunctionType: ScriptValues._builtin,
    types.MethodWrapperType: ScriptValues._of_object,
    itertools.count: _count,
    functools.partial: ScriptValues._partial,
    weakref.ref: ScriptValues._weak,
    torch.Generator: _torch_generator,
    np.random.Generator: ScriptValues._numpy_generator,
    np.random.RandomState: _legacy_generator,
    random.Random: _random,
    types.SimpleNamespace: ScriptValues._object,
    object: _same,
}
# The first that fits.
_READERS_OF_BASES: tuple[tuple[Any, _Reader], ...] = (
    (enum.Enum, ScriptValues._member),
    (np.ufunc, ScriptValues._builtin),
    (np.random.BitGenerator, ScriptValues._bits),
    (CONSTANT, ScriptValues._constant),
    (io.IOBase, _stream),
    (types.FunctionType, ScriptValues._function),
    (type, ScriptValues._class),
    (types.ModuleType, _module),
    (BaseException, ScriptValues._exception),
    ((*AS_IT_IS, random.SystemRandom), _same),
    (_BaseDataLoaderIter, ScriptValues._iterator),
    (DataLoader, ScriptValues._loader),
)
