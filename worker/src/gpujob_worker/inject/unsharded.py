"""A copy of a module that `fully_shard` (FSDP2) spreads over processes, with whole parameters.

Each call of the module itself gathers its parameters from all processes. A process that made one
call more than the others, or one less, would wait for them forever. For tries, all processes gather
once at the same step. After that the copy runs in each of them alone.
"""

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpujob_worker.inject.guards import FULLY_SHARDED

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# FSDP2's hooks are defined in this package.
_OF_SHARDING = "torch.distributed."
_REACHED = "forward reaches sharded modules past the copy that is tried"


class ReachedError(RuntimeError):
    """A call of the copy was about to gather from other processes."""


def is_sharded(value: Any) -> bool:
    """Returns whether the value is a tensor that is spread over processes."""
    return isinstance(value, torch.Tensor) and type(value).__name__ == "DTensor"


def whole_bytes(module: nn.Module) -> int:
    """Returns the bytes of the copy's parameters: the global sizes of those that are spread."""
    found = [each for each in module.parameters() if is_sharded(each)]
    return sum(each.numel() * each.element_size() for each in found)


def copy_refusal(module: nn.Module, processes: int) -> str | None:
    """Returns why a copy would differ from the module, or could not be made by all processes at
    once.

    None if it can be used.
    """
    for layer in _sharded_layers(module):
        policy = getattr(_state(layer), "_mp_policy", None)
        if policy is None or not (_groups(layer) or _has_nothing_of_its_own(layer)):
            return f"what fully_shard keeps of {type(layer).__name__} is not known in this torch"
        if policy.param_dtype is not None or policy.output_dtype is not None:
            return "fully_shard casts the module itself (its MixedPrecisionPolicy)"
    for name, parameter in module.named_parameters():
        if not is_sharded(parameter):
            continue
        mesh: Any = parameter.device_mesh  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        if mesh.size() != processes:
            return f"parameter {name} is spread over {mesh.size()} of {processes} processes"
        if mesh.device_type != parameter.device.type:
            return f"parameter {name} waits on {parameter.device.type} until it is used"
    return None


def unsharded_copy(module: nn.Module) -> nn.Module:
    """Returns the copy. All processes have to call this at the same time.

    Buffers, and parameters that are not spread, are the module's own.
    """
    with torch.no_grad():
        gathered = {
            parameter: nn.Parameter(_gathered(parameter), parameter.requires_grad)
            for parameter in module.parameters()
            if is_sharded(parameter)
        }
    return _copied(module, gathered, {})


def _gathered(parameter: Any) -> torch.Tensor:
    whole: torch.Tensor = parameter.detach().full_tensor()
    return whole


def _copied(
    layer: nn.Module, gathered: dict[Any, nn.Parameter], made: dict[nn.Module, nn.Module]
) -> nn.Module:
    if layer in made:
        return made[layer]
    kind = _own_class(type(layer))
    copy = made[layer] = object.__new__(kind)
    own = dict(vars(layer))
    own.pop("_compiled_call_impl", None)
    parameters, modules = own["_parameters"].items(), own["_modules"].items()
    own["_buffers"] = dict(own["_buffers"])
    own["_parameters"] = {name: gathered.get(each, each) for name, each in parameters}
    own["_modules"] = {
        name: child if child is None else _copied(child, gathered, made) for name, child in modules
    }
    own.update({hooks: _without_sharding(own[hooks]) for hooks in _HOOKS})
    vars(copy).update(own)
    return copy


def _own_class(kind: type[Any]) -> type[Any]:
    """Returns the script's class, of which FSDP2 made a subclass."""
    own = [base for base in kind.__bases__ if base.__name__ != FULLY_SHARDED]
    return kind if len(own) == len(kind.__bases__) else own[0]


def _without_sharding(hooks: "OrderedDict[int, Any]") -> "OrderedDict[int, Any]":
    kept = OrderedDict[int, Any]()
    for key, hook in hooks.items():
        of = str(getattr(hook, "__module__", None) or type(hook).__module__)
        if not of.startswith(_OF_SHARDING):
            kept[key] = hook
    return kept


@contextmanager
def nothing_gathered(module: nn.Module) -> Generator[None]:
    """Makes calls that would gather the module's parameters raise `ReachedError` instead.

    A copy may reach the module if it kept it, or a part of it, in a list or a closure.
    """
    kinds = {type(group) for layer in _sharded_layers(module) for group in _groups(layer)}
    plain: dict[Any, Any] = {kind: kind.unshard for kind in kinds}

    def unshard(*_: Any, **__: Any) -> None:
        raise ReachedError(_REACHED)

    for kind in plain:
        kind.unshard = unshard
    try:
        yield
    finally:
        for kind, function in plain.items():
            kind.unshard = function


def counterpart(layer: nn.Module | None, of: nn.Module, to: nn.Module) -> nn.Module | None:
    """Returns the layer of `to` at the place that `layer` has in `of`, or None."""
    name = next((name for name, each in of.named_modules() if each is layer), None)
    return None if name is None else dict(to.named_modules()).get(name)


def _sharded_layers(module: nn.Module) -> list[nn.Module]:
    return [
        layer
        for layer in module.modules()
        if any(kind.__name__ == FULLY_SHARDED for kind in type(layer).__mro__)
    ]


def _has_nothing_of_its_own(layer: nn.Module) -> bool:
    """Returns whether every sharded parameter belongs to a wrapped module inside.

    A root that was wrapped after all its parts is such a module, and gathers nothing itself.
    """
    inside = {
        id(parameter)
        for other in _sharded_layers(layer)
        if other is not layer
        for parameter in other.parameters()
    }
    own = [each for each in layer.parameters() if id(each) not in inside]
    return bool(inside) and not any(map(is_sharded, own))


def _state(layer: Any) -> Any:
    ask = getattr(layer, "_get_fsdp_state", None)
    return ask() if ask is not None else None


def _groups(layer: nn.Module) -> list[Any]:
    """Returns FSDP2's groups of parameters that are gathered at once. Older releases have a single
    one.
    """
    state = _state(layer)
    groups = getattr(state, "_fsdp_param_groups", None)
    found = groups if groups is not None else [getattr(state, "_fsdp_param_group", None)]
    return [group for group in found if group is not None]
