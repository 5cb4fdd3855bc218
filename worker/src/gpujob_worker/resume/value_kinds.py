"""Classifies the values of a script: plain, constant, an object of the script, or of a library."""

import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import sys
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpujob_worker.resume.script_source import is_script_file

KIND = "k"
# Node type of a value that only its library can read, and makes again.
LEFT = "left"
# The class for buffers is newer than the oldest supported torch.
TENSORS = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ATOMS = {*PLAIN, bytearray, type(Ellipsis), type(StopIteration), types.CodeType}
CONSTANT = (
    torch.device, torch.dtype, torch.layout, pathlib.PurePath, datetime.date, datetime.time,
    datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern,
    range, slice, type(Ellipsis), type(NotImplemented), enum.Enum, np.dtype,
)  # fmt: skip
AS_IT_IS = (
    types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.GenericAlias, types.CodeType, property, staticmethod, classmethod, weakref.ref,
    BaseException, np.ufunc,
)  # fmt: skip
# Packages whose objects show or write results, or hold values that no step changes.
_WITHOUT_LEARNING = frozenset((
    "_thread", "abc", "argparse", "csv", "datasets", "functools", "gpujob_worker", "io",
    "json", "logging", "matplotlib", "mlflow", "optparse", "os", "pathlib", "PIL",
    "pyarrow", "rich", "selectors", "signal", "socket", "subprocess", "sys", "tempfile",
    "tensorboard", "tensorboardX", "tensorflow", "time", "tokenizers", "tqdm", "typing",
    "wandb", "warnings", "yaml", "zoneinfo",
))  # fmt: skip
# Modules and classes of other packages with the same property.
_OF_OTHERS = (
    "_csv.writer", "_csv.Dialect", "_io.", "concurrent.futures.", "inspect.Signature",
    "multiprocessing.context.", "multiprocessing.synchronize.", "threading.", "sqlite3.",
)  # fmt: skip
_OF_TORCH = ("torch.profiler", "torch.autograd", "torch.utils.tensorboard", "torch.cuda",
             "torch._C", "torch.distributed", "torch.amp", "torch.jit", "torch._ops",
             "torch._dynamo", "torch.utils.data", "torch.utils.hooks")  # fmt: skip
# Scripts keep numbers that they change in an `argparse.Namespace`.
READ = ("argparse.Namespace", "types.SimpleNamespace")
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"training", "_compiled_call_impl", "forward"}
# Attributes that torch's recurrent layers derive from their parameters, and make again.
_OF_LAYERS = frozenset((
    "_all_weights", "_flat_weight_refs", "_flat_weights", "_flat_weights_names",
))  # fmt: skip
# Torch's datasets that pass on the content of others.
AROUND_DATA = (
    torch.utils.data.Subset, torch.utils.data.ConcatDataset, torch.utils.data.ChainDataset,
)  # fmt: skip
# Attributes of every torch optimizer. Its state has them, or the script's code makes them.
_OPTIMIZER_OWN = frozenset((
    "defaults", "param_groups", "state", "step", "_opt_called",
    "_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name",
))  # fmt: skip
# Iterators of Python's own containers.
ITERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (type(iter([])), type(iter(())), type(iter(range(0))), enumerate, zip)
}
BASES = (dict, list, set, collections.deque, tuple)
# Attributes that enumerations keep in their members.
MEMBER_OWN = ("_value_", "_name_", "__objclass__", "_sort_order_")
CONTAINERS: dict[str, Any] = {
    "list": list, "dict": dict, "set": set, "deque": collections.deque, "bytearray": bytearray,
    "OrderedDict": collections.OrderedDict, "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}  # fmt: skip


def name_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


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


def global_name(value: Any) -> str | None:
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


def state_of_class(kind: type) -> dict[str, Any]:
    """Returns the values that a class keeps, without its description."""
    return {
        name: each
        for name, each in vars(kind).items()
        if not (name.startswith("__") or callable(each) or isinstance(each, AS_IT_IS))
        and not hasattr(each, "__get__")
    }


def functions_of_class(kind: type) -> dict[str, str]:
    own = {name: each for name, each in vars(kind).items() if isinstance(each, types.FunctionType)}
    return {name: code_key(each) for name, each in own.items()}


def attributes_of_module(part: torch.nn.Module) -> dict[str, Any]:
    """Returns a module's attributes besides its parts, parameters and buffers.

    For torch's own layers, declared attributes are left out, except numbers such as the probability
    of a dropout.
    """
    made = _made_with(type(part))
    return {
        name: value
        for name, value in vars(part).items()
        if name not in MODULE_OWN
        and (type(value) in PLAIN or (made is not None and name not in made))
        and not isinstance(value, torch.nn.Module)
        # The worker sets its own attributes again.
        and not type(value).__module__.startswith("gpujob_worker.")
    }


@functools.lru_cache(maxsize=4096)
def _made_with(kind: type) -> frozenset[str] | None:
    """Returns attributes that torch's layers do not change. None for all that are not plain."""
    if not kind.__module__.startswith("torch."):
        return frozenset()
    if not kind.__module__.startswith("torch.nn.modules."):
        return None
    declared = [vars(each).get("__constants__", ()) for each in kind.__mro__]
    annotated = [vars(each).get("__annotations__", ()) for each in kind.__mro__]
    return _OF_LAYERS.union(*declared, *annotated)


def attributes_of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns what an optimizer outside torch keeps in addition to its state: counters,
    averages.
    """
    if type(optimizer).__module__.startswith("torch."):
        return {}
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _OPTIMIZER_OWN and not name.startswith("_optimizer_")
    }


def held_by_loader(loader: Any) -> list[Any]:
    """Returns the objects of the script or of a library that a loader calls, and may change."""
    held = (loader.dataset, loader.sampler, loader.batch_sampler, loader.collate_fn)
    of_script = [each for each in held if each is not None and is_of_script(type(each))]
    called = [loader.dataset, loader.collate_fn]
    return [*of_script, *(each for each in called if _may_keep(each))]


def _may_keep(called: Any) -> bool:
    kind = type(called)
    if isinstance(called, types.FunctionType):
        return is_of_script(called)
    if isinstance(called, (types.MethodType, functools.partial, *AROUND_DATA)):
        return True
    of_torch = kind.__module__.startswith("torch.")
    return not (of_torch or is_of_script(kind) or learns_nothing(kind) or kind in _ATOMS)


def inner_containers(value: Any) -> list[int]:
    """Returns the identities of the containers inside a container of these and plain values."""
    found: list[int] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        items = [*one.keys(), *one.values()] if isinstance(one, dict) else one
        kinds = set(map(type, items))
        if not kinds <= _ATOMS:
            inner = [each for each in items if type(each) not in _ATOMS]
            found += map(id, inner)
            waiting += inner
    return found


def keeps_order(value: "set[Any] | frozenset[Any]") -> bool:
    """Returns whether a set made of the items has them in the same order.

    The order of values other than numbers differs between processes.
    """
    if not set(map(type, value)) <= {int, float, bool}:
        return True
    made: set[Any] = set()
    for each in value:
        made.add(each)
    return list(made) == list(value)


def is_of_script(value: Any) -> bool:
    """Returns whether a class or function is the script's own."""
    if isinstance(value, types.FunctionType):
        return is_script_file(value.__code__.co_filename)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(module, "__name__", "")
    return name == "__main__" or is_script_file(getattr(module, "__file__", None) or "<none>")


def learns_nothing(kind: type) -> bool:
    name = name_of(kind)
    return name.partition(".")[0] in _WITHOUT_LEARNING or name.startswith((*_OF_TORCH, *_OF_OTHERS))


@functools.lru_cache(maxsize=4096)
def is_plain_object(kind: type) -> bool:
    """Returns whether an instance consists of its attributes, without anything that only its own
    code can read.
    """
    known = (object, tuple, *CONTAINERS.values(), types.SimpleNamespace, *typing.Protocol.__mro__)
    return all(base in known or _is_of_class_statement(base) for base in kind.__mro__)


def _is_of_class_statement(kind: type) -> bool:
    """Returns whether a class statement made the class. Classes of extensions have methods and
    members in C.
    """
    of_c = (
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    )
    # A member that is borrowed from a base, as in `__getattr__ = dict.get`, belongs to that base.
    return not any(
        isinstance(each, of_c) and each.__objclass__ is kind for each in vars(kind).values()
    )


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots: Any = vars(each).get("__slots__", ())
        names: list[str] = [slots] if isinstance(slots, str) else list(slots)
        owner = each.__name__.lstrip("_")
        own = [name for name in names if name not in ("__dict__", "__weakref__")]
        found += [f"_{owner}{name}" if name.startswith("__") else name for name in own]
    return found


def attributes(value: Any) -> dict[str, Any]:
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for name in _slots(type(value)):
        try:
            # A class may have a `__getattr__` that returns more than its attributes.
            found[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    return found


def set_attributes(target: Any, before: dict[str, Any], values: dict[str, Any]) -> None:
    own = vars(target) if hasattr(target, "__dict__") else {}
    slots = set(_slots(type(target)))
    for name, value in values.items():
        if name in before and value is before[name]:
            continue
        if name in slots or not hasattr(target, "__dict__"):
            object.__setattr__(target, name, value)
        else:
            own[name] = value


def constant_text(value: Any) -> str:
    return f"{name_of(type(value))} {value!r}"


def constant_parts(value: Any) -> tuple[Any, ...] | None:
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


def constant_of(name: str, parts: list[Any]) -> Any:
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
