"""The optimizers of the model in training: the one whose steps count, and those with the fused
kernel.
"""

import weakref
from collections.abc import Iterable, Sequence

import torch

from gpujob_worker.inject.fused_optimizer import keep_fused, parameters_of
from gpujob_worker.inject.wrapped_module import Root

Optimizer = torch.optim.Optimizer
# Maximum number of optimizers that are tuned. A script may have one for each parameter.
OPTIMIZERS_MAX = 8


class TunedOptimizers:
    """Holds weak references, because the script may drop any of the optimizers."""

    def __init__(self) -> None:
        self._first: weakref.ref[Optimizer] | None = None
        self._fused: list[weakref.ref[Optimizer]] = []

    @property
    def first(self) -> Optimizer | None:
        """The optimizer that has the settings, or None if the script has dropped it."""
        return self._first() if self._first is not None else None

    @property
    def fused(self) -> list[Optimizer]:
        """The optimizers for which the fused kernel was chosen."""
        return [found for found in (known() for known in self._fused) if found is not None]

    def lead(self, optimizer: Optimizer) -> None:
        self._first = weakref.ref(optimizer)

    def fuse(self, optimizers: Iterable[Optimizer]) -> None:
        """Chooses the fused kernel for these optimizers and no others. It is applied later."""
        self._fused = [weakref.ref(optimizer) for optimizer in optimizers]

    def stay_fused(self, optimizer: Optimizer) -> bool:
        """Called before each step; returns False once no optimizer is fused any more.

        Groups that the script added step like the others. If they cannot, the optimizer steps as
        written from now on.
        """
        if optimizer not in self.fused or keep_fused(optimizer):
            return True
        self._fused = [known for known in self._fused if known() is not optimizer]
        return bool(self._fused)


def named(optimizers: Sequence[Optimizer], item: str) -> list[tuple[Optimizer, str]]:
    """Returns each optimizer with the name of its decision. The first one's name is the item
    itself.
    """
    found: list[tuple[Optimizer, str]] = []
    kinds: list[str] = []
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        kinds.append(kind)
        number = kinds.count(kind)
        name = f"{kind} {number}" if number > 1 else kind
        found.append((optimizer, f"{item} of {name}" if len(kinds) > 1 else item))
    return found


def trains(optimizer: Optimizer, roots: Sequence[Root]) -> bool:
    """Returns whether the optimizer steps a parameter of the roots."""
    theirs = {id(parameter) for root in roots for parameter in root.module.parameters()}
    return any(id(p) in theirs for p in parameters_of(optimizer))
