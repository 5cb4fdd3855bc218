"""Tensors of which this process has a part (FSDP2's DTensors), in the form of its checkpoint.

That is the part, and the facts that show whether it is restored to the same place. Nothing is
gathered. Each process saves its part, and the same number of processes has to come back.
"""

import collections
from typing import Any, cast

import torch

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.inject.unsharded import is_sharded

_KEY = "gpujob part of a tensor"


def sharding_refusal(module: torch.nn.Module) -> str | None:
    """Returns why this process's parts cannot be saved, or None.

    FSDP2's own way is to cut in one dimension and to repeat in others. Under tensor parallelism
    random numbers are drawn for whole tensors, and their state is not saved.
    """
    kinds = {name for part in module.modules() for name in _names(part)}
    if "FullyShardedDataParallel" in kinds:
        return "FullyShardedDataParallel (the first generation) spreads its state"
    found = [parameter for parameter in module.parameters() if is_sharded(parameter)]
    if found and "FSDPModule" not in kinds:
        return "DTensor spreads its parameters, and fully_shard did not make it"
    for parameter in found:
        placements = cast("Any", parameter).placements
        cuts = [type(each).__name__ for each in placements if not each.is_replicate()]
        if cuts != ["Shard"]:
            return f"its parameters lie as {placements}: more than fully_shard spreads them"
    return None


def is_spread_possible() -> bool:
    """Returns whether tensors may be spread. They cannot be without a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def with_own_parts(state: Any) -> Any:
    """Returns the same nested state with plain tensors of this process alone."""
    if is_sharded(state):
        return {_KEY: _place(state), "local": state.detach().to_local()}
    if type(state) in (dict, collections.OrderedDict):
        items = cast("dict[Any, Any]", state).items()
        return {key: with_own_parts(value) for key, value in items}
    if type(state) in (list, tuple):
        entries = [with_own_parts(each) for each in cast("list[Any]", state)]
        return entries if isinstance(state, list) else tuple(entries)
    return state  # no other container has a tensor that is spread


def joined_module(saved: dict[str, Any], module: torch.nn.Module) -> dict[str, Any]:
    """Returns the state for the module, in which parts become tensors that are spread like its own.

    Raises `MismatchError` if its own are spread differently.
    """
    found = module.state_dict()
    return {name: _joined(value, found.get(name), name) for name, value in saved.items()}


def joined_optimizer(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Does the same for an optimizer, whose state is spread like the parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state: dict[Any, Any] = {}
    for index, values in saved["state"].items():
        like = parameters[index] if index < len(parameters) else None
        state[index] = {
            name: _joined(value, like, f"{name} of parameter {index}")
            for name, value in values.items()
        }
    return {**saved, "state": state}


def shape_of(value: Any) -> Any:
    """Returns the facts that must be equal for a state to fit, for a live or a saved value."""
    if is_sharded(value):
        return _place(value)
    if isinstance(value, dict) and _KEY in value:
        return cast("dict[str, Any]", value)[_KEY]
    return getattr(value, "shape", None)


def _place(tensor: Any) -> dict[str, Any]:
    """Returns which part of which tensor this process has."""
    mesh = tensor.device_mesh
    return {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "placements": [str(placement) for placement in tensor.placements],
        "mesh": list(mesh.shape),
        "coordinate": list(mesh.get_coordinate() or ()),
    }


def _joined(value: Any, like: Any, name: str) -> Any:
    if not (isinstance(value, dict) and _KEY in value):
        return value
    part = cast("dict[str, Any]", value)
    if not is_sharded(like) or _place(like) != part[_KEY]:
        raise MismatchError(f"{name} is not spread over the processes as it was")
    return type(like).from_local(
        part["local"],
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _names(module: torch.nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}
