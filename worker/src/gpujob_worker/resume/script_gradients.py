"""Gradients that are part of a script's state: those to which its next step adds.

Most scripts clear the gradients between two steps, so their values there do not matter. They are
saved for a script that was seen not to clear them, or of which too few steps were seen.
"""

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

# Minimum number of an optimizer's steps for which it is known what came between them.
STEPS_SEEN_MIN = 2


class ScriptGradients:
    """Watches which optimizers' gradients are cleared between two steps."""

    def __init__(self) -> None:
        self._cleared: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._kept = False

    def install(self) -> None:
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            _before(kind, "zero_grad", self._clears)

    def _clears(self, owner: Any) -> None:
        if isinstance(owner, torch.nn.Module):
            own = set(map(id, owner.parameters()))
            self._cleared.update(each for each in self._steps if _parameters_of(each) <= own)
        else:
            self._cleared.add(owner)

    def before_step(self, optimizer: Any) -> None:
        if optimizer in self._steps and optimizer not in self._cleared:
            self._kept = True

    def after_step(self, optimizer: Any) -> None:
        self._steps[optimizer] = min(STEPS_SEEN_MIN, self._steps.get(optimizer, 0) + 1)
        self._cleared.discard(optimizer)

    def saved(self, made: Sequence[Any], *, in_step: bool = False) -> list[Any]:
        """Returns the gradients that matter, with the optimizer's number, its group and the
        position in it, or with the module's number and the parameter's name.

        With `in_step`, some belong to the next step.
        """
        return [*_unstepped(made), *self._of_optimizers(made, in_step)]

    def _of_optimizers(self, made: Sequence[Any], in_step: bool) -> list[Any]:
        known = all(steps >= STEPS_SEEN_MIN for steps in self._steps.values())
        if known and not self._kept and not in_step:
            return []
        return [
            (number, at, place, tensor.grad)
            for number, at, place, tensor in _stepped(made)
            if tensor.grad is not None and (in_step or made[number] not in self._cleared)
        ]

    def restore(self, made: Sequence[Any], saved: Sequence[Any]) -> None:
        """Restores exactly these gradients. Raises `LookupError` for unknown tensors."""
        modules = [each for each in made if isinstance(each, torch.nn.Module)]
        for tensor in [each for module in modules for each in module.parameters()]:
            tensor.grad = None
        for _, _, _, tensor in _stepped(made):
            tensor.grad = None
        for number, *of, gradient in saved:
            _parameter(made[number], of).grad = gradient.clone()


def _stepped(made: Sequence[Any]) -> list[tuple[int, int, int, torch.Tensor]]:
    return [
        (number, at, place, tensor)
        for number, each in enumerate(made)
        if isinstance(each, torch.optim.Optimizer)
        for at, group in enumerate(each.param_groups)
        for place, tensor in enumerate(group["params"])
    ]


def _parameters_of(optimizer: Any) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}


def _unstepped(made: Sequence[Any]) -> list[tuple[int, str, torch.Tensor]]:
    """Returns gradients of parameters that no optimizer steps.

    No step clears these gradients, and a norm of all gradients includes them.
    """
    stepped = {id(tensor) for _, _, _, tensor in _stepped(made)}
    return [
        (number, name, tensor.grad)
        for number, each in enumerate(made)
        if isinstance(each, torch.nn.Module)
        for name, tensor in each.named_parameters()
        if tensor.grad is not None and id(tensor) not in stepped
    ]


def _parameter(owner: Any, of: Sequence[Any]) -> torch.Tensor:
    if isinstance(owner, torch.nn.Module):
        found = dict(owner.named_parameters())
        return found[of[0]]
    at, place = of
    return owner.param_groups[at]["params"][place]


def _before(kind: Any, method: str, call: Any) -> None:
    plain = getattr(kind, method)

    @functools.wraps(plain)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call(self)
        return plain(self, *arguments, **keywords)

    setattr(kind, method, wrapped)
