"""The script's modules and optimizers, which are saved separately, and what belongs to them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.values.kinds import TENSORS

Parts = list[tuple[str, torch.nn.Module]]


def parts_of(module: torch.nn.Module) -> Parts:
    return list(module.named_modules())


def tensors_of(parts: Parts) -> list[tuple[str, torch.Tensor]]:
    """Returns parameters, then buffers, each under its first name."""
    found = {id(tensor): (name, tensor) for name, tensor in reversed(_all_tensors(parts))}
    return list(found.values())[::-1]


# pyright: reportPrivateUsage=false
def _all_tensors(parts: Parts) -> list[tuple[str, torch.Tensor]]:
    """Returns tensors under all their names. Torch's own lists walk through all parts for each
    kind.
    """
    kinds = ([part._parameters for _, part in parts], [part._buffers for _, part in parts])
    return [
        (f"{prefix}.{name}" if prefix else name, tensor)
        for tensors in kinds
        for (prefix, _), own in zip(parts, tensors, strict=True)
        for name, tensor in own.items()
        if tensor is not None
    ]


def unsaved_buffers(module: torch.nn.Module, parts: Parts) -> dict[str, torch.Tensor]:
    """Returns the buffers that are in no state of the module."""
    if not any(part._buffers for _, part in parts):
        return {}
    saved = module.state_dict(keep_vars=True)
    return {name: value for name, value in module.named_buffers() if name not in saved}


def structure_of(made: Any, parts: Parts) -> Any:
    """Returns the facts of a module with these parts, or of an optimizer, that must be equal for a
    state to fit.
    """
    if isinstance(made, torch.optim.Optimizer):
        return [len(group["params"]) for group in made.param_groups]
    if not isinstance(made, torch.nn.Module):
        return None
    first: dict[int, str] = {}
    unsaved = unsaved_buffers(made, parts)
    return [name for name, _ in parts], [
        (name, tensor.dtype, tensor.shape, first.setdefault(id(tensor), name))
        for name, tensor in _all_tensors(parts)
        if name not in unsaved
    ]


def address_key(address: int, size: int, device: str) -> int:
    return hash((address, size, device))


def storage_key_of(storage: Any, device: torch.device) -> int:
    return address_key(storage.data_ptr(), storage.nbytes(), str(device))


def storage_key(tensor: torch.Tensor) -> int:
    """Returns the key of a tensor's memory, if that is not empty."""
    return storage_key_of(tensor.untyped_storage(), tensor.device)


def stepped_by(made: Any) -> set[int]:
    """Returns the identities of tensors that an optimizer steps. `ScriptGradients` keeps their
    gradients.
    """
    if not isinstance(made, torch.optim.Optimizer):
        return set()
    return {id(each) for group in made.param_groups for each in group["params"]}


def memories_of(made: Any) -> set[int]:
    """Returns the start addresses of the memories of a module, or of an optimizer's state."""
    tensors: list[torch.Tensor] = []
    if isinstance(made, torch.nn.Module):
        tensors = [tensor for _, tensor in tensors_of(parts_of(made))]
    if isinstance(made, torch.optim.Optimizer):
        states = [dict(state).values() for state in made.state.values()]
        tensors = [each for state in states for each in state if type(each) is torch.Tensor]
    return {each.untyped_storage().data_ptr() for each in tensors if _has_memory(each)}


def _has_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) in TENSORS and tensor.layout is torch.strided


def part_of_made(made: Sequence[Any], of: tuple[int, str], path: str) -> torch.Tensor:
    """Returns the tensor at a place from `MadeObjects.part_of`. Raises `MismatchError`."""
    number, name = of
    for known, tensor in tensors_of(parts_of(made[number])):
        if known == name:
            return tensor
    raise MismatchError(f"{path}: {type(made[number]).__name__} has no {name}")


class MadeObjects:
    """Finds the objects that are saved separately, and their parts, by identity.

    Places in them are `(number of the object, name)`.
    """

    def __init__(self, made: Sequence[Any], lost: Sequence[Any] = ()) -> None:
        """`lost` are those that a resume does not make again."""
        self._lost = {id(each) for each in lost}
        self._numbers = {id(each): number for number, each in enumerate(made)}
        # The parts of a module, by the module's identity.
        self._inside: dict[int, Parts] = {}
        self._parts: dict[int, tuple[int, str]] = {}
        self._inner: dict[int, tuple[int, str]] = {}
        self._memories: dict[int, tuple[int, str]] = {}
        self._of_optimizers: dict[int, tuple[int, str, int]] = {}
        self._stepped: set[int] = set()
        for number, each in enumerate(made):
            self._stepped |= stepped_by(each)
            if isinstance(each, torch.nn.Module):
                self._add_parts(number, each)
            if isinstance(each, torch.optim.Optimizer):
                self._add_groups(number, each)
        lost_for_good = {id(each) for each in lost if not isinstance(each, DataLoader)}
        self._separate = {*self._numbers, *lost_for_good, *self._of_optimizers}

    def _add_parts(self, number: int, module: torch.nn.Module) -> None:
        parts = self._inside[id(module)] = parts_of(module)
        for name, tensor in tensors_of(parts):
            self._parts.setdefault(id(tensor), (number, name))
            if _has_memory(tensor) and tensor.numel():
                self._memories.setdefault(storage_key(tensor), (number, name))
        for name, part in parts:
            self._inner.setdefault(id(part), (number, name))

    def _add_groups(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        """Registers what the optimizer replaces when it loads a state."""
        self._of_optimizers[id(optimizer.state)] = number, "state", 0
        self._of_optimizers[id(optimizer.param_groups)] = number, "param_groups", 0
        for at, group in enumerate(optimizer.param_groups):
            self._of_optimizers[id(group)] = number, "group", at

    def is_separate(self, value: Any) -> bool:
        """Returns whether the value is one of the objects, part of an optimizer, or lost.

        A lost loader is not, because another loader may stand for it.
        """
        return id(value) in self._separate

    def number_of(self, value: Any) -> int | None:
        return self._numbers.get(id(value))

    def is_lost(self, value: Any) -> bool:
        return id(value) in self._lost

    def place_in_optimizer(self, value: Any) -> tuple[int, str, int]:
        """Returns the place of a state, of a list of groups or of a group: `(number of the
        optimizer, which, position of the group)`.
        """
        return self._of_optimizers[id(value)]

    def part_of(self, tensor: torch.Tensor) -> tuple[int, str] | None:
        """Returns the place of a parameter or a buffer."""
        return self._parts.get(id(tensor))

    def memory_of(self, key: int) -> tuple[int, str] | None:
        """Returns the place of a tensor whose memory has the key."""
        return self._memories.get(key)

    def inner_of(self, module: torch.nn.Module) -> tuple[int, str] | None:
        """Returns the place of a module in another one."""
        return self._inner.get(id(module))

    def parts_in(self, module: Any) -> Parts:
        """Returns the parts that one of the objects had at the beginning, or an empty list."""
        return self._inside.get(id(module), [])

    def is_stepped(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._stepped
