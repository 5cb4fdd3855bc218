"""Modules and optimizers: references to those that are saved separately, and what these keep.

The state of a module or an optimizer is saved by its own `state_dict`. Here are its other
attributes, its flags and its unsaved buffers, and the variables that refer to it or to its parts.

A script may have made an optimizer in an earlier turn of its loops, such as one for all layers. A
resume does not pass the line that made this later optimizer. Torch's optimizers consist of their
groups, their defaults and their state per parameter, as a copy of them does.
"""

import collections
import functools
from collections.abc import Sequence
from typing import Any

import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.values.attributes import is_made_later
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.kinds import PLAIN, name_of
from gpujob_worker.resume.values.made_objects import parts_of, tensors_of, unsaved_buffers
from gpujob_worker.resume.values.objects import restore_same
from gpujob_worker.resume.values.reader import Names, Reader
from gpujob_worker.resume.values.restorer import Restorer

_MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"training", "_compiled_call_impl", "forward"}
# Attributes that torch's recurrent layers derive from their parameters, and make again.
_OF_LAYERS = frozenset((
    "_all_weights", "_flat_weight_refs", "_flat_weights", "_flat_weights_names",
))  # fmt: skip
# Attributes of every torch optimizer. Its state has them, or the script's code makes them.
_OPTIMIZER_OWN = frozenset((
    "defaults", "param_groups", "state", "step", "_opt_called",
    "_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name",
))  # fmt: skip
# LBFGS keeps a list of its parameters in addition to its groups.
_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__: kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.LBFGS)
}


def read_separate(reader: Reader, value: Any, path: str) -> Node:
    """Returns the reference to an object that is saved separately, or to a part of an optimizer.

    Raises `UnsavableError` for one that a resume does not make again.
    """
    number = reader.made.number_of(value)
    if number is not None:
        return {KIND: "made", "number": number}
    if not reader.made.is_lost(value):
        return {KIND: "of optimizer", "of": reader.made.place_in_optimizer(value)}
    if _OPTIMIZERS.get(type(value).__name__) is type(value):
        return _read_later_optimizer(reader, value, path)
    raise UnsavableError(f"{path} is a {type(value).__name__} of another turn of the loop")


def restore_made(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del existing, path
    restorer.bind(index, restorer.made[node["number"]])


def restore_of_optimizer(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del existing, path
    number, which, at = node["of"]
    optimizer = restorer.made[number]
    found = optimizer.param_groups[at] if which == "group" else vars(optimizer)[which]
    restorer.bind(index, found)


def _read_later_optimizer(reader: Reader, value: Any, path: str) -> Node:
    return {
        KIND: "later optimizer",
        "type": type(value).__name__,
        "defaults": reader.encode(value.defaults, path),
        "groups": reader.encode(value.param_groups, path),
        "state": [
            (reader.encode(tensor, path), reader.encode(kept, path))
            for tensor, kept in value.state.items()
        ],
    }


def restore_later_optimizer(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del existing
    kind = _OPTIMIZERS.get(node["type"])
    if kind is None:
        raise MismatchError(f"{path} was a {node['type']}, which torch has not")
    made: Any = kind.__new__(kind)
    restorer.bind(index, made)
    defaults, groups = (restorer.value(node[name], None, path) for name in ("defaults", "groups"))
    state: Any = collections.defaultdict(dict)
    state.update(
        [
            (restorer.value(one, None, path), restorer.value(kept, None, path))
            for one, kept in node["state"]
        ]
    )
    made.__setstate__({"defaults": defaults, "param_groups": groups, "state": state})
    restorer.adopts(made)


def read_module(reader: Reader, value: torch.nn.Module, path: str) -> Node:
    """Returns a part of a module that is saved, or a module without its own state."""
    del path
    of = reader.made.inner_of(value)
    if of is not None:
        return {KIND: "inner module", "of": of}
    return {KIND: "module", "type": name_of(type(value)), "parts": _read_parts(reader, value)}


def restore_inner_module(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del existing
    number, name = node["of"]
    try:
        restorer.bind(index, restorer.made[number].get_submodule(name))
    except AttributeError as error:
        raise MismatchError(f"{path}: {error}") from None


def restore_module(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    restore_same(restorer, index, node, existing, path)
    _restore_parts(restorer, existing, node["parts"])


def _read_parts(reader: Reader, module: torch.nn.Module) -> Node:
    return {
        name: (part.training, _read_own(reader, part, _attributes_of_module(part)))
        for name, part in reader.made.parts_in(module) or parts_of(module)
    }


def _restore_parts(restorer: Restorer, module: torch.nn.Module, saved: Node) -> None:
    parts = dict(module.named_modules())
    if set(parts) != set(saved):
        raise MismatchError(f"{type(module).__name__} has other parts than were saved")
    for name, (training, extra) in saved.items():
        part = parts[name]
        part.training = training
        _restore_own(restorer, part, _attributes_of_module(part), extra)


def _read_own(reader: Reader, owner: Any, values: Names) -> Names:
    kind = type(owner).__name__
    return {
        name: each if type(each) in PLAIN else reader.encode_kept(owner, each, f"{kind}.{name}")
        for name, each in values.items()
    }


def _restore_own(restorer: Restorer, target: Any, now: Names, saved: Names) -> None:
    own = vars(target)
    for key in now.keys() - saved.keys():
        del own[key]
    for key, encoded in saved.items():
        before = own.get(key)
        if is_made_later(restorer, encoded, before):
            continue
        value = restorer.value(encoded, before, f"{type(target).__name__}.{key}")
        if value is not before or key not in own:
            own[key] = value


def _attributes_of_module(part: torch.nn.Module) -> Names:
    """Returns a module's attributes besides its parts, parameters and buffers.

    For torch's own layers, declared attributes are left out, except numbers such as the probability
    of a dropout.
    """
    made = _made_with(type(part))
    return {
        name: value
        for name, value in vars(part).items()
        if name not in _MODULE_OWN
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


def _attributes_of_optimizer(optimizer: torch.optim.Optimizer) -> Names:
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


def read_kept(reader: Reader, made: Sequence[Any]) -> list[Any]:
    """Returns what modules have besides parameters and buffers (flags and attributes), and the
    same of optimizers. None for other objects.
    """
    found: list[Any] = []
    for each in made:
        if isinstance(each, torch.optim.Optimizer):
            found.append(_read_own(reader, each, _attributes_of_optimizer(each)))
            reader.read_waiting()
        elif isinstance(each, torch.nn.Module):
            found.append(_read_module_kept(reader, each))
        else:
            found.append(None)
    return found


def _read_module_kept(reader: Reader, module: torch.nn.Module) -> Node:
    parts = _read_parts(reader, module)
    reader.read_waiting()
    inside = reader.made.parts_in(module)
    learns = {
        name: tensor.requires_grad
        for name, tensor in tensors_of(inside)
        if isinstance(tensor, torch.nn.Parameter)
    }
    return {"parts": parts, "learns": learns, "buffers": unsaved_buffers(module, inside)}


def restore_kept(restorer: Restorer, saved: Sequence[Any]) -> None:
    """Restores what `read_kept` returned. Raises `MismatchError`."""
    for each, described in zip(restorer.made, saved, strict=True):
        if described is None:
            continue
        if isinstance(each, torch.optim.Optimizer):
            _restore_own(restorer, each, _attributes_of_optimizer(each), described)
            continue
        module: torch.nn.Module = each
        _restore_parts(restorer, module, described["parts"])
        for name, tensor in module.named_parameters():
            if tensor.is_leaf:
                tensor.requires_grad_(bool(described["learns"].get(name, tensor.requires_grad)))
        _restore_buffers(module, described["buffers"])


def _restore_buffers(module: torch.nn.Module, saved: dict[str, torch.Tensor]) -> None:
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


def check_structures(reader: Reader, made: Sequence[Any]) -> None:
    """Raises `UnsavableError` for an object that got other parts than a resume gives it."""
    for each in made:
        if reader.baseline.has_other_structure(each, reader.made.parts_in(each)):
            raise UnsavableError(
                f"{type(each).__name__} got other parts or parameters while the script trained"
            )


def read_stepped(reader: Reader, made: Sequence[Any]) -> list[Any]:
    """Returns tensors that optimizers step and no module has."""
    found: list[Any] = []
    for number, each in enumerate(made):
        if not isinstance(each, torch.optim.Optimizer):
            continue
        for at, group in enumerate(each.param_groups):
            for place, tensor in enumerate(group["params"]):
                if reader.made.part_of(tensor) is None:
                    path = f"a parameter of {type(each).__name__}"
                    found.append((number, at, place, reader.encode(tensor, path)))
    reader.read_waiting()
    return found


def restore_stepped(restorer: Restorer, saved: Sequence[Any]) -> None:
    """Restores what `read_stepped` returned. Raises `MismatchError`."""
    for number, at, place, encoded in saved:
        optimizer = restorer.made[number]
        try:
            tensor = optimizer.param_groups[at]["params"][place]
        except (IndexError, AttributeError):
            text = f"{type(optimizer).__name__} has other parameters than were saved"
            raise MismatchError(text) from None
        if restorer.value(encoded, tensor, "a parameter") is not tensor:
            raise MismatchError(f"{type(optimizer).__name__} steps another tensor")


FAMILY = Family(
    restores={
        "made": restore_made,
        "of optimizer": restore_of_optimizer,
        "later optimizer": restore_later_optimizer,
        "module": restore_module,
        "inner module": restore_inner_module,
    },
    reads_of_bases=((torch.nn.Module, read_module),),
)
