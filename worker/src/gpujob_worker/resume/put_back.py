"""Puts the values that `script_values` read back into a run of the same script."""

import collections
import functools
import io
import random
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.frame_variables import set_variables
from gpujob_worker.resume.halted import HaltedAgain
from gpujob_worker.resume.passes import Passes, pass_of
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.tensor_memory import (
    bytes_of,
    digest_of,
    layout,
    layout_of,
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
    attributes,
    class_named,
    constant_of,
    constant_text,
    is_of_script,
    name_of,
    set_attributes,
)

Encoded = Any


class PutBack:
    """Puts values that `ScriptValues` read into the variables of a run of the same script."""

    def __init__(
        self,
        nodes: Sequence[Any],
        made: Sequence[Any],
        passes: Passes,
        moved: tuple[str, str] = ("", ""),
    ) -> None:
        """`moved`: the folder in which the script ran, and the one in which it runs now."""
        self._moved = moved
        self._nodes, self._made, self._passes = nodes, made, passes
        self._done: dict[int, Any] = {}
        self._taken: set[int] = set()

    def value(self, encoded: Encoded, existing: Any, path: str) -> Any:
        """The value to bind; `existing` itself, with its content put back, where it fits.

        Raises `MismatchError`.
        """
        if not isinstance(encoded, tuple):
            return self._in_folder(encoded) if type(encoded) is str else encoded
        index = int(encoded[1])
        if index not in self._done:
            self._make(index, existing, path)
        return self._done[index]

    def _in_folder(self, text: str) -> str:
        """A path in the folder in which the script ran is one in the folder where it runs."""
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
        """Whether the object is of the kind, and stands for no other one yet."""
        return type(existing) is kind and id(existing) not in self._taken

    def make_made(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing, path
        self._is(index, self._made[node["number"]])

    def make_part(self, index: int, node: Any, existing: Any, path: str) -> None:
        del existing
        self._is(index, self._part(node["of"], path))

    def _part(self, of: Any, path: str) -> torch.Tensor:
        number, name = of
        for known, tensor in tensors_of(self._made[number]):
            if known == name:
                return tensor
        raise MismatchError(f"{path}: {type(self._made[number]).__name__} has no {name}")

    def make_view(self, index: int, node: Any, existing: Any, path: str) -> None:
        part = self._part(node["of"], path).detach()
        fits = (
            isinstance(existing, torch.Tensor)
            and existing.numel() > 0
            and storage_key(existing) == storage_key(part)
            and layout(existing) == layout_of(node)
        )
        self._is(index, existing if fits else view_of(part.untyped_storage(), part.device, node))

    def make_tensor(self, index: int, node: Any, existing: Any, path: str) -> None:
        memory_index = int(node["storage"][1])
        memory = self._done.get(memory_index)
        fits = (
            type(existing) in (torch.Tensor, torch.nn.Parameter)
            and existing.layout is torch.strided
            and layout(existing) == layout_of(node)
            and not (existing.requires_grad and not existing.is_leaf)
            and existing.numel() > 0
        )
        if memory is None:
            memory = self._fill(memory_index, existing if fits else None, path)
        if fits and storage_key(existing) == storage_key_of(
            memory.untyped_storage(), memory.device
        ):
            found = existing
        else:
            found = view_of(memory.untyped_storage(), memory.device, node)
            if node["parameter"]:
                found = torch.nn.Parameter(found, requires_grad=node["learns"])
        if found.is_leaf:
            found.requires_grad_(bool(node["learns"]))
        self._is(index, found)

    def _fill(self, index: int, existing: torch.Tensor | None, path: str) -> torch.Tensor:
        """The memory, in that of the tensor that is there where it is as large."""
        node = self._nodes[index]
        if node[KIND] == "unchanged memory":
            if existing is None:
                raise MismatchError(f"{path} was not made again")
            memory = bytes_of(existing)
            if memory.numel() != node["bytes"] or digest_of(memory) != node["digest"]:
                raise MismatchError(f"{path} is not what it was: the script made it otherwise")
            return self._is(index, memory)
        data: torch.Tensor = node["data"]
        if existing is None or existing.untyped_storage().nbytes() != data.numel():
            return self._is(index, data.clone())
        memory = bytes_of(existing)
        memory.copy_(data)
        return self._is(index, memory)

    def make_array(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        data = node["data"]
        fits = self._fits(existing, np.ndarray)
        alike = fits and existing.shape == data.shape and existing.dtype == data.dtype
        if alike and existing.flags.writeable:
            existing[...] = data
            self._is(index, existing)
        else:
            self._is(index, data.copy())

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
        target: Any = existing if self._fits(existing, kind) else None
        before: list[Any] = list(target) if target is not None else []
        if kind is collections.deque:
            if target is None or target.maxlen != node["most"]:
                target = collections.deque(maxlen=node["most"])
        elif target is None:
            target = kind()
        self._is(index, target)
        values = self._entries(node["items"], before, path)
        target.clear()
        _extend(target, values)

    def _entries(self, items: Sequence[Any], before: Sequence[Any], path: str) -> list[Any]:
        padded = [*before[: len(items)], *[None] * (len(items) - len(before))]
        return [
            self.value(entry, was, f"{path}[{at}]")
            for at, (entry, was) in enumerate(zip(items, padded, strict=True))
        ]

    def make_tuple(self, index: int, node: Any, existing: Any, path: str) -> None:
        before: tuple[Any, ...] = existing if isinstance(existing, tuple) else ()
        values = self._entries(node["items"], before, path)
        same = len(values) == len(before) and all(map(_is, values, before))
        made: Any = tuple(values)
        if node[KIND] == "Size":
            made = torch.Size(made)
        if node[KIND] == "frozenset":
            made, same = frozenset(made), False
        self._is(index, existing if same else made)

    def make_dict(self, index: int, node: Any, existing: Any, path: str) -> None:
        kind = CONTAINERS[node[KIND]]
        target = existing if self._fits(existing, kind) else kind()
        self._is(index, target)
        if isinstance(target, collections.defaultdict):
            target.default_factory = self.value(
                node["factory"], target.default_factory, f"{path}.default_factory"
            )
        self._fill_dict(target, node["items"], path)

    def _fill_dict(self, target: Any, items: Sequence[Any], path: str) -> None:
        before = dict(target)
        values: list[tuple[Any, Any]] = []
        for key, entry in items:
            name = self.value(key, None, path)
            values.append((name, self.value(entry, before.get(name), f"{path}[{name!r:.40}]")))
        dict.clear(target)
        for name, value in values:
            dict.__setitem__(target, name, value)

    def make_object(self, index: int, node: Any, existing: Any, path: str) -> None:
        if name_of(type(existing)) != node["class"] or id(existing) in self._taken:
            kind: Any = class_named(node["class"])
            if kind is None:
                raise MismatchError(f"{path} was a {node['class']}, which cannot be made again")
            base = next((each for each in kind.__mro__ if each in BASES), object)
            existing = base.__new__(kind)
        self._is(index, existing)
        if "base" in node:
            self._fill_base(existing, node, path)
        before = attributes(existing)
        values = {
            name: self.value(entry, before.get(name), f"{path}.{name}")
            for name, entry in node["attributes"].items()
        }
        for name in before:
            if name not in values:
                object.__delattr__(existing, name)
        set_attributes(existing, before, values)

    def _fill_base(self, target: Any, node: Any, path: str) -> None:
        if issubclass(type(target), dict):
            self._fill_dict(target, node["items"], path)
            return
        values = self._entries(node["items"], list(target), path)
        base: Any = CONTAINERS[node["base"]]
        base.clear(target)
        add = base.add if base is set else base.append
        for value in values:
            add(target, value)

    def make_same(self, index: int, node: Any, existing: Any, path: str) -> None:
        if name_of(type(existing)) != node["type"]:
            found = "nothing" if existing is None else f"a {type(existing).__name__}"
            raise MismatchError(f"{path} was a {node['type']} and is {found}")
        self._is(index, existing)

    def make_constant(self, index: int, node: Any, existing: Any, path: str) -> None:
        if constant_text(existing) == node["text"]:
            self._is(index, existing)
            return
        made = constant_of(node["text"])
        if made is None:
            raise MismatchError(
                f"{path} was {node['text']:.100}, and is {constant_text(existing):.100}"
            )
        self._is(index, made)

    def make_function(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, types.FunctionType):
            raise MismatchError(f"{path} was a function and is a {type(existing).__name__}")
        self._is(index, existing)
        for encoded, cell in zip(node["cells"], existing.__closure__ or (), strict=False):
            self.value(encoded, cell, path)
        for name, encoded in node["attributes"].items():
            setattr(existing, name, self.value(encoded, getattr(existing, name, None), path))
        for encoded, each in zip(node["defaults"], existing.__defaults__ or (), strict=False):
            self.value(encoded, each, path)

    def make_cell(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, types.CellType):
            raise MismatchError(f"{path} has another closure")
        self._is(index, existing)
        if "value" in node:
            try:
                before = existing.cell_contents
            except ValueError:
                before = None
            existing.cell_contents = self.value(node["value"], before, path)

    def make_method(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, types.MethodType):
            raise MismatchError(f"{path} was a method and is a {type(existing).__name__}")
        self.value(node["self"], existing.__self__, path)
        self._is(index, existing)

    def make_partial(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, functools.partial):
            raise MismatchError(f"{path} was a partial and is a {type(existing).__name__}")
        parts: Any = (existing.func, existing.args, existing.keywords)
        for encoded, each in zip(node["parts"], parts, strict=True):
            self.value(encoded, each, path)
        self._is(index, existing)

    def make_class(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, type) or name_of(existing) != node["name"]:
            raise MismatchError(f"{path} was {node['name']}")
        self._is(index, existing)
        for name, encoded in node["attributes"].items():
            before = vars(existing).get(name)
            value = self.value(encoded, before, f"{path}.{name}")
            if value is not before:
                setattr(existing, name, value)

    def make_loader(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, DataLoader):
            raise MismatchError(f"{path} was a loader and is a {type(existing).__name__}")
        self._is(index, existing)
        loader: Any = existing
        of = Generators(loader)
        of.restore(node["generators"])
        of.tell_epochs(node["epochs"])
        held = (loader.dataset, loader.sampler, loader.batch_sampler, loader.collate_fn)
        own = [each for each in held if each is not None and is_of_script(type(each))]
        for encoded, each in zip(node.get("own", ()), own, strict=False):
            self.value(encoded, each, path)

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
        HaltedAgain(node["halted"], self._passes, path).run(existing)
        self._is(index, existing)
        frame = existing.gi_frame
        before = frame.f_locals
        set_variables(
            frame,
            {
                name: self.value(encoded, before.get(name), f"{path}'s {name}")
                for name, encoded in node["names"].items()
            },
        )

    def make_torch_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        del path
        device = node["device"]
        fits = isinstance(existing, torch.Generator) and str(existing.device) == device
        found: Any = existing if fits else torch.Generator(device)
        found.set_state(node["state"])
        self._is(index, found)

    def make_numpy_generator(self, index: int, node: Any, existing: Any, path: str) -> None:
        if not isinstance(existing, (np.random.Generator, np.random.RandomState)):
            existing = np.random.default_rng()
        target: Any = existing
        if isinstance(target, np.random.RandomState):
            target.set_state(node["state"])
        elif target.bit_generator.state["bit_generator"] != node["state"]["bit_generator"]:
            raise MismatchError(f"{path} is another kind of generator")
        else:
            target.bit_generator.state = node["state"]
        self._is(index, target)

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
        """What was closed is of no more use, whichever file it was."""
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
        found = existing if isinstance(existing, random.Random) else random.Random()  # noqa: S311
        found.setstate(node["state"])
        self._is(index, found)

    def modules(self, saved: Sequence[Any]) -> None:
        for each, described in zip(self._made, saved, strict=True):
            if described is None:
                continue
            module: torch.nn.Module = each
            parts = dict(module.named_modules())
            if set(parts) != set(described["parts"]):
                raise MismatchError(f"{type(module).__name__} has other parts than were saved")
            for name, (training, extra) in described["parts"].items():
                self._module(parts[name], training, extra)
            for name, tensor in module.named_parameters():
                if tensor.is_leaf:
                    tensor.requires_grad_(bool(described["learns"].get(name, tensor.requires_grad)))
            for name, buffer in module.named_buffers():
                value = described["buffers"].get(name)
                if value is not None and buffer.shape == value.shape:
                    buffer.copy_(value)

    def _module(self, part: torch.nn.Module, training: bool, extra: dict[str, Any]) -> None:
        part.training = training
        for key, encoded in extra.items():
            before = vars(part).get(key)
            value = self.value(encoded, before, f"{type(part).__name__}.{key}")
            if value is not before:
                vars(part)[key] = value

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
    "made": PutBack.make_made, "part": PutBack.make_part, "view": PutBack.make_view,
    "tensor": PutBack.make_tensor, "array": PutBack.make_array,
    "unchanged": PutBack.make_unchanged, "same": PutBack.make_same,
    "constant": PutBack.make_constant, "function": PutBack.make_function,
    "cell": PutBack.make_cell, "method": PutBack.make_method, "partial": PutBack.make_partial,
    "class": PutBack.make_class, "loader": PutBack.make_loader,
    "builtin iterator": PutBack.make_builtin_iterator,
    "iterator": PutBack.make_iterator, "generator": PutBack.make_generator,
    "torch generator": PutBack.make_torch_generator,
    "numpy generator": PutBack.make_numpy_generator, "random": PutBack.make_random,
    "object": PutBack.make_object, "buffer": PutBack.make_buffer, "stream": PutBack.make_stream,
    "closed stream": PutBack.make_closed_stream,
    "list": PutBack.make_list, "set": PutBack.make_list, "deque": PutBack.make_list,
    "bytearray": PutBack.make_list, "tuple": PutBack.make_tuple,
    "frozenset": PutBack.make_tuple, "Size": PutBack.make_tuple,
    "dict": PutBack.make_dict, "OrderedDict": PutBack.make_dict,
    "Counter": PutBack.make_dict, "defaultdict": PutBack.make_dict,
}  # fmt: skip


def _is(one: Any, other: Any) -> bool:
    return one is other


def _extend(target: Any, values: Iterable[Any]) -> None:
    if isinstance(target, set):
        target.update(values)  # pyright: ignore[reportUnknownMemberType]
    else:
        target.extend(values)
