"""Classifies types of values: plain, of a library that keeps no state, or of readable instances."""

import collections
import functools
import types
import typing
import weakref
from typing import Any

import numpy as np
import torch

# The class for buffers is newer than the oldest supported torch.
TENSORS = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Values that have no others inside.
ATOMS = {*PLAIN, bytearray, type(Ellipsis), type(StopIteration), types.CodeType}
CONTAINERS: dict[str, Any] = {
    "list": list, "dict": dict, "set": set, "deque": collections.deque, "bytearray": bytearray,
    "OrderedDict": collections.OrderedDict, "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}  # fmt: skip
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
# Torch's datasets that pass on the content of others.
AROUND_DATA = (
    torch.utils.data.Subset, torch.utils.data.ConcatDataset, torch.utils.data.ChainDataset,
)  # fmt: skip


def name_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


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
