"""What a script's variables hold, as plain values and tensors, and how it is put back.

Everything that can be reached from the variables is one table of nodes; an object that is reached
twice is one node, so that what was shared is shared again. What is put back is put into the objects
that are there already, where there are such: others may reference them.

What was large before the first step and is unchanged is not saved: the script makes it again, and
its hash is compared. What cannot be read is a reason not to save at all.
"""

import collections
import enum
import functools
import io
import random
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
from gpujob_worker.resume.halted import described
from gpujob_worker.resume.passes import Passes, pass_of
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.tensor_memory import (
    bytes_of,
    digest_of,
    plain_digest,
    storage_key,
    tensors_of,
    unsaved_buffers,
    version_of,
)
from gpujob_worker.resume.value_kinds import (
    AS_IT_IS,
    BASES,
    CONSTANT,
    CONTAINERS,
    ITERATORS,
    KIND,
    MODULE_OWN,
    PLAIN,
    READ,
    TENSORS,
    attributes,
    constant_text,
    is_of_script,
    is_plain_object,
    learns_nothing,
    name_of,
)

NODES_MAX = 300_000
# From this size on a value that did not change is made again by the script.
LARGE_BYTES = 1 << 16
LARGE_ITEMS = 5_000

Encoded = Any
Names = dict[str, Any]


class Baseline:
    """Large values as they were before the first step."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Any], int, str | None]] = {}
        self._digests: dict[int, str] = {}
        self.names: dict[tuple[str, str], int] = {}

    def sees_tensor(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        self._tensors[key] = (weakref.ref(tensor), version_of(tensor), None)

    def sees(self, value: Any, digest: str) -> None:
        self._digests[id(value)] = digest

    def unchanged_tensor(self, tensor: torch.Tensor) -> str | None:
        """The hash of the tensor's storage, if nothing was written to it since."""
        known = self._tensors.get(storage_key(tensor))
        if known is None:
            return None
        seen = known[0]()
        if seen is None or version_of(seen) != known[1] or version_of(tensor) != known[1]:
            return None
        digest = known[2] or digest_of(bytes_of(tensor))
        self._tensors[storage_key(tensor)] = (known[0], known[1], digest)
        return digest

    def unchanged(self, value: Any, digest: str) -> bool:
        return self._digests.get(id(value)) == digest


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
        """`made`: the script's modules, optimizers and the like, which are saved by themselves.
        `lost`: those that a resume does not make again. `first`: nothing is read but large values,
        into the baseline.
        """
        self._lost = {id(each) for each in lost}
        self._passes = passes
        # Loops of halted generators, which have to be begun elsewhere, too.
        self.lines: list[tuple[str, int]] = []
        self.nodes: list[Any] = []
        self._baseline, self._first = baseline, first
        self._made = {id(each): number for number, each in enumerate(made)}
        self._parts: dict[int, tuple[int, str]] = {}
        self._part_storages: dict[int, tuple[int, str]] = {}
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []
        self._waiting: collections.deque[tuple[int, Any, str]] = collections.deque()
        for number, each in enumerate(made):
            if isinstance(each, torch.nn.Module):
                self._own_parts(number, each)

    def _own_parts(self, number: int, module: torch.nn.Module) -> None:
        for name, tensor in tensors_of(module):
            self._parts.setdefault(id(tensor), (number, name))
            if type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.numel():
                self._part_storages.setdefault(storage_key(tensor), (number, name))

    def names(self, scope: str, variables: Names) -> Names:
        """The variables' values, encoded. Raises `UnsavableError` for one that cannot be read."""
        found: Names = {}
        for name, value in variables.items():
            if self._stays(scope, name, value):
                continue
            found[name] = self.encode(value, name)
            self._read()
        return found

    def encode(self, value: Any, path: str) -> Encoded:
        if type(value) in PLAIN or isinstance(value, np.generic):
            return value
        index = self._known.get(id(value))
        if index is None:
            index = self._known[id(value)] = len(self.nodes)
            if index >= NODES_MAX:
                raise UnsavableError(f"its variables hold more than {NODES_MAX} values")
            self._alive.append(value)
            self.nodes.append(None)
            self._waiting.append((index, value, path))
        return ("r", index)

    def _read(self) -> None:
        while self._waiting:
            index, value, path = self._waiting.popleft()
            self.nodes[index] = self._describe(value, path)

    def _stays(self, scope: str, name: str, value: Any) -> bool:
        """Whether the variable has what it had before the first step, and that has no state."""
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
        if id(value) in self._lost:
            raise UnsavableError(f"{path} is a {_kind_name(value)} of another turn of the loop")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
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
        view = {
            "dtype": str(value.dtype).removeprefix("torch."),
            "size": tuple(value.size()),
            "stride": value.stride(),
            "offset": value.storage_offset(),
            "conjugated": bool(value.is_conj()),
            "negated": bool(value.is_neg()),
            "learns": value.is_leaf and value.requires_grad,
            "parameter": isinstance(value, torch.nn.Parameter),
        }
        owner = self._part_storages.get(storage_key(value)) if value.numel() else None
        if owner is not None:
            return {KIND: "view", "of": owner, **view}
        return {KIND: "tensor", "storage": self._storage(value), **view}

    def _storage(self, value: torch.Tensor) -> Encoded:
        """The memory of a tensor; once for all tensors that share it."""
        key = -storage_key(value) if value.numel() else id(value)
        index = self._known.get(key)
        if index is None:
            index = self._known[key] = len(self.nodes)
            self.nodes.append(self._memory(value))
        return ("r", index)

    def _memory(self, value: torch.Tensor) -> dict[str, Any]:
        size = value.untyped_storage().nbytes()
        if size >= LARGE_BYTES:
            if self._first:
                self._baseline.sees_tensor(value)
                return {}
            digest = self._baseline.unchanged_tensor(value)
            if digest is not None:
                return {KIND: "unchanged memory", "bytes": size, "digest": digest}
        return {KIND: "memory", "data": bytes_of(value)}

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        if value.dtype.hasobject:
            raise UnsavableError(f"{path} is an array of {value.dtype}")
        if value.nbytes >= LARGE_BYTES:
            digest = digest_of(value)
            if self._first:
                self._baseline.sees(value, digest)
            elif self._baseline.unchanged(value, digest):
                return {KIND: "unchanged", "type": "array", "digest": digest}
        return {KIND: "array", "data": value}

    def _container(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value).__name__
        if len(value) >= LARGE_ITEMS:
            digest = plain_digest(value)
            if digest is not None and self._first:
                self._baseline.sees(value, digest)
                return {}
            if digest is not None and self._baseline.unchanged(value, digest):
                return {KIND: "unchanged", "type": kind, "digest": digest}
        described: dict[str, Any] = {KIND: kind, "items": self._items(value, path)}
        if isinstance(value, collections.deque):
            described["most"] = cast("Any", value).maxlen
        if isinstance(value, collections.defaultdict):
            factory = cast("Any", value).default_factory
            described["factory"] = self.encode(factory, f"{path}.default_factory")
        return described

    def _items(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value).items()
            return [
                (self.encode(key, path), self.encode(entry, f"{path}[{key!r:.40}]"))
                for key, entry in pairs
            ]
        return [self.encode(entry, f"{path}[{at}]") for at, entry in enumerate(value)]

    def _function(self, value: Any, path: str) -> dict[str, Any]:
        cells: list[Any] = []
        if is_of_script(value):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                cells.append(self.encode(cell, f"{path}.{name}"))
        extra = {name: self.encode(each, f"{path}.{name}") for name, each in vars(value).items()}
        defaults = [self.encode(each, path) for each in value.__defaults__ or ()]
        extra = extra if is_of_script(value) else {}
        return {KIND: "function", "cells": cells, "attributes": extra, "defaults": defaults}

    def _cell(self, value: types.CellType, path: str) -> dict[str, Any]:
        try:
            return {KIND: "cell", "value": self.encode(value.cell_contents, path)}
        except ValueError:
            return {KIND: "cell"}

    def _method(self, value: Any, path: str) -> dict[str, Any]:
        return {KIND: "method", "self": self.encode(value.__self__, path)}

    def _partial(self, value: Any, path: str) -> dict[str, Any]:
        parts = (value.func, value.args, value.keywords)
        return {KIND: "partial", "parts": [self.encode(each, path) for each in parts]}

    def _class(self, value: Any, path: str) -> dict[str, Any]:
        attributes: Names = {}
        if is_of_script(value) and not issubclass(value, enum.Enum):
            for name, each in vars(value).items():
                changes = not callable(each) and not isinstance(each, AS_IT_IS)
                if changes and not name.startswith("__") and not hasattr(each, "__get__"):
                    attributes[name] = self.encode(each, f"{path}.{name}")
        return {KIND: "class", "name": name_of(value), "attributes": attributes}

    def _loader(self, value: Any, path: str) -> dict[str, Any]:
        of = Generators(value)
        described = {KIND: "loader", "generators": of.states(), "epochs": of.epochs()}
        if self._first and isinstance(value.dataset, torch.utils.data.TensorDataset):
            return described
        held = (value.dataset, value.sampler, value.batch_sampler, value.collate_fn)
        own = [each for each in held if each is not None and is_of_script(type(each))]
        described["own"] = [self.encode(each, f"{path}.{type(each).__name__}") for each in own]
        return described

    def _generator(self, value: Any, path: str) -> dict[str, Any]:
        if self._passes is None:
            return {KIND: "same", "type": name_of(type(value))}
        halted = described(value, self._passes, path)
        if halted is None:
            return {KIND: "same", "type": name_of(type(value))}
        self.lines += [(halted["file"], loop["line"]) for loop in halted["loops"]]
        names = {
            name: self.encode(each, f"{path}'s {name}")
            for name, each in value.gi_frame.f_locals.items()
        }
        return {KIND: "generator", "halted": halted, "names": names}

    def _of_container(self, value: Any, path: str) -> dict[str, Any]:
        """Iterators of Python's own containers, as they describe themselves to `copy`."""
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
        loader = self.encode(record.loader, f"{path}'s loader")
        return {KIND: "iterator", "pass": record.state(record.fetched), "loader": loader}

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        name = name_of(kind)
        if name not in READ and learns_nothing(kind):
            return {KIND: "same", "type": name}
        if isinstance(value, Dataset) and not is_of_script(kind):
            return {KIND: "same", "type": name}
        described: dict[str, Any] = {KIND: "object", "class": name}
        base = next((each for each in kind.__mro__ if each in BASES), None)
        if base is not None:
            described["base"], described["items"] = base.__name__, self._items(value, path)
        elif not is_plain_object(kind):
            raise UnsavableError(f"{path} is a {name}, which keeps what cannot be read")
        described["attributes"] = {
            key: self.encode(each, f"{path}.{key}") for key, each in attributes(value).items()
        }
        return described

    def modules(self, made: Sequence[Any]) -> list[Any]:
        """What modules have besides parameters and buffers: flags, and attributes of the script's
        own classes.
        """
        found: list[Any] = []
        for each in made:
            if not isinstance(each, torch.nn.Module):
                found.append(None)
                continue
            parts: dict[str, Any] = {}
            for name, part in each.named_modules():
                parts[name] = (part.training, self._module_attributes(part, name))
                self._read()
            learns = {name: tensor.requires_grad for name, tensor in each.named_parameters()}
            found.append({"parts": parts, "learns": learns, "buffers": unsaved_buffers(each)})
        return found

    def _module_attributes(self, part: torch.nn.Module, path: str) -> Names:
        own = is_of_script(type(part)) or type(part).__module__.startswith("torchmetrics")
        found: Names = {}
        for name, value in vars(part).items():
            if name in MODULE_OWN or isinstance(value, torch.nn.Module):
                continue
            if type(value).__module__.startswith("gpujob_worker."):
                continue  # put there by the worker, which puts it there again
            if own or type(value) in PLAIN:
                found[name] = self.encode(value, f"{type(part).__name__}.{name}")
        return found if own or not type(part).__module__.startswith("torch.nn.") else {}

    def stepped(self, made: Sequence[Any]) -> list[Any]:
        """Tensors that optimizers step and no module has."""
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


def _kind_name(value: Any) -> str:
    return type(value).__name__


def _torch_generator(values: ScriptValues, value: torch.Generator, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "torch generator", "state": value.get_state(), "device": str(value.device)}


def _numpy_generator(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    del values, path
    legacy = isinstance(value, np.random.RandomState)
    state = value.get_state(legacy=False) if legacy else value.bit_generator.state
    return {KIND: "numpy generator", "state": state}


def _constant(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "constant", "text": constant_text(value)}


def _stream(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    """What is written is looked after by its file; what is read goes on at its position."""
    if isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
        return {KIND: "buffer", "content": value.getvalue(), "at": value.tell()}
    if value.closed:
        return {KIND: "closed stream", "type": name_of(type(value))}
    if not value.readable():
        return _same(values, value, path)
    try:
        return {KIND: "stream", "type": name_of(type(value)), "at": value.tell()}
    except (OSError, ValueError) as error:
        raise UnsavableError(f"{path} is read from a place that is not told: {error}") from None


def _random(values: ScriptValues, value: random.Random, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "random", "state": value.getstate()}


def _same(values: ScriptValues, value: Any, path: str) -> dict[str, Any]:
    del values, path
    return {KIND: "same", "type": name_of(type(value))}


_READERS: dict[type, Callable[[ScriptValues, Any, str], dict[str, Any]]] = {
    **dict.fromkeys(
        (*CONTAINERS.values(), tuple, frozenset, torch.Size),
        ScriptValues._container,  # pyright: ignore[reportPrivateUsage]
    ),
    np.ndarray: ScriptValues._array,  # pyright: ignore[reportPrivateUsage]
    types.CellType: ScriptValues._cell,  # pyright: ignore[reportPrivateUsage]
    **dict.fromkeys(
        ITERATORS.values(),
        ScriptValues._of_container,  # pyright: ignore[reportPrivateUsage]
    ),
    types.GeneratorType: ScriptValues._generator,  # pyright: ignore[reportPrivateUsage]
    types.MethodType: ScriptValues._method,  # pyright: ignore[reportPrivateUsage]
    functools.partial: ScriptValues._partial,  # pyright: ignore[reportPrivateUsage]
    torch.Generator: _torch_generator,
    np.random.Generator: _numpy_generator,
    np.random.RandomState: _numpy_generator,
    types.SimpleNamespace: ScriptValues._object,  # pyright: ignore[reportPrivateUsage]
    object: _same,
}
# The first that fits.
_READERS_OF_BASES: tuple[tuple[Any, Callable[[ScriptValues, Any, str], dict[str, Any]]], ...] = (
    (CONSTANT, _constant),
    (io.IOBase, _stream),
    (types.FunctionType, ScriptValues._function),  # pyright: ignore[reportPrivateUsage]
    (type, ScriptValues._class),  # pyright: ignore[reportPrivateUsage]
    ((torch.nn.Module, *AS_IT_IS, random.SystemRandom), _same),
    (_BaseDataLoaderIter, ScriptValues._iterator),  # pyright: ignore[reportPrivateUsage]
    (DataLoader, ScriptValues._loader),  # pyright: ignore[reportPrivateUsage]
    (random.Random, _random),
)
