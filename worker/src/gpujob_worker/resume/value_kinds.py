"""Which values of a script are what: plain, constant, an object of the script, of a library."""

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
from typing import Any

import numpy as np
import torch

from gpujob_worker.resume.script_source import is_script_file

KIND = "k"
# A class of its own for buffers is younger than the oldest torch that is known here.
TENSORS = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
PLAIN = (type(None), bool, int, float, complex, str, bytes)
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
# Packages whose objects show or write what was learned, or hold what no step changes.
_WITHOUT_LEARNING = frozenset((
    "_thread", "abc", "argparse", "csv", "datasets", "functools", "gpujob_worker", "io",
    "json", "logging", "matplotlib", "mlflow", "optparse", "os", "pathlib", "PIL",
    "pyarrow", "rich", "selectors", "signal", "socket", "subprocess", "sys", "tempfile",
    "tensorboard", "tensorboardX", "tensorflow", "time", "tokenizers", "tqdm", "typing",
    "wandb", "warnings", "yaml", "zoneinfo",
))  # fmt: skip
# Of other packages these modules and classes.
_OF_OTHERS = (
    "_csv.writer", "_csv.Dialect", "_io.", "concurrent.futures.", "multiprocessing.context.",
    "multiprocessing.synchronize.", "threading.", "sqlite3.",
)  # fmt: skip
_OF_TORCH = ("torch.profiler", "torch.autograd", "torch.utils.tensorboard", "torch.cuda",
             "torch._C", "torch.distributed", "torch.amp", "torch.jit", "torch._ops",
             "torch._dynamo", "torch.utils.data", "torch.utils.hooks")  # fmt: skip
# An `argparse.Namespace` is where scripts keep numbers that they change.
READ = ("argparse.Namespace", "types.SimpleNamespace")
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"training", "_compiled_call_impl", "forward"}
# Iterators of Python's own containers.
ITERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (type(iter([])), type(iter(())), type(iter(range(0))), enumerate, zip)
}
BASES = (dict, list, set, collections.deque)
CONTAINERS: dict[str, Any] = {
    "list": list, "dict": dict, "set": set, "deque": collections.deque, "bytearray": bytearray,
    "OrderedDict": collections.OrderedDict, "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}  # fmt: skip


def name_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def class_named(name: str) -> type | None:
    """A class of a module that is imported, found by its name; None where there is none such."""
    module, _, rest = name.rpartition(".")
    while module:
        found: Any = sys.modules.get(module)
        if found is not None:
            for part in name[len(module) + 1 :].split("."):
                found = getattr(found, part, None)
            return found if isinstance(found, type) and is_plain_object(found) else None
        module, _, rest = module.rpartition(".")
    del rest
    return None


def is_of_script(value: Any) -> bool:
    """Whether a class or function is the script's own."""
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
    """Whether an instance is its attributes, and nothing that only its own code can read."""
    known = (object, *CONTAINERS.values(), types.SimpleNamespace, *typing.Protocol.__mro__)
    return all(base in known or _is_of_class_statement(base) for base in kind.__mro__)


def _is_of_class_statement(kind: type) -> bool:
    """Classes of extensions have methods and members that are no Python."""
    of_c = (
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    )
    return not any(isinstance(each, of_c) for each in vars(kind).values())


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots: Any = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def attributes(value: Any) -> dict[str, Any]:
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for name in _slots(type(value)):
        mangled = f"_{type(value).__name__.lstrip('_')}{name}" if name.startswith("__") else name
        if hasattr(value, mangled):
            found[mangled] = getattr(value, mangled)
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
    return f"{name_of(type(value))} {value!r}"[:2000]


def constant_of(text: str) -> Any:
    """Constants that a script may choose while it runs; None for those that cannot be made."""
    name, _, shown = text.partition(" ")
    if name == "torch.dtype":
        return getattr(torch, shown.removeprefix("torch."), None)
    if name == "builtins.range":
        return range(*map(int, re.findall(r"-?\d+", shown)))
    if name.startswith("pathlib.") and shown.endswith("')"):
        return pathlib.Path(shown.partition("('")[2][:-2])
    member = re.match(r"<\w+\.(\w+)", shown)
    kind: Any = sys.modules.get(name.rpartition(".")[0])
    kind = getattr(kind, name.rpartition(".")[2], None)
    if member is not None and isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind.__members__.get(member[1])
    return None
