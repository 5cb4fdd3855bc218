"""One look at what the settings in force change in the loss, for `loss_check`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import tensor_leaves
from gpujob_worker.tune.trial import short


@dataclass(slots=True)
class Look:
    """One call, from before its forward to the end of its step."""

    differences: list[torch.Tensor]
    # Samples that were compared; None: all.
    rows: int | None
    # They are this part of the batch.
    part: float
    # What each sample adds to the change of the loss.
    changes: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    failure: str | None = None
    # A step ended without its backward, which another optimizer's step may follow.
    waited: bool = False
    handles: list[Any] = field(default_factory=list[Any])

    def ends_with_step(self) -> bool:
        """Called after each optimizer's step. True if backward was seen, or if this is the second
        step without it, after which it is waited for no longer.
        """
        waited, self.waited = self.waited, True
        return waited or self.changes is not None or self.failure is not None

    def watch(self, output: Any, loss_now: Callable[[], torch.Tensor | None]) -> None:
        """Adds what each output's difference does to the loss, while backward runs."""
        for leaf, difference in zip(tensor_leaves(output), self.differences, strict=False):
            if leaf.requires_grad and leaf.dim() == difference.dim():
                self.handles.append(leaf.register_hook(self._hook(difference, loss_now)))

    def _hook(
        self, difference: torch.Tensor, loss_now: Callable[[], torch.Tensor | None]
    ) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            try:
                with torch.no_grad():
                    self._add(gradient.detach(), difference)
            except Exception as error:
                self.failure = short(error)
            self.loss = loss_now()

        return add

    def _add(self, gradient: torch.Tensor, difference: torch.Tensor) -> None:
        few = gradient if self.rows is None else gradient.narrow(0, 0, self.rows)
        products = few.double() * difference
        each = products.sum().reshape(1) if self.rows is None else products.flatten(1).sum(1)
        self.changes = each if self.changes is None else self.changes + each

    def found(self, typical_loss: float) -> tuple[float, float]:
        """The change of the loss, and what chance alone makes of it; both relative to the loss."""
        assert self.changes is not None
        assert self.loss is not None
        rows = self.changes.numel()
        chance = float(self.changes.std()) * math.sqrt(rows) if rows > 1 else 0.0
        size = self.part * max(abs(float(self.loss)), typical_loss)
        return _relative(float(self.changes.sum()), size), _relative(chance, size)

    def forget_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()


def difference(ours: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    if not ours.is_floating_point() or ours.shape != written.shape:
        return torch.zeros_like(ours, dtype=torch.float64)
    return ours.double() - written.double()


def _relative(change: float, loss: float) -> float:
    """Infinite where it is not finite, or where there was no loss to change."""
    if not math.isfinite(change):
        return math.inf
    return change / abs(loss) if loss else math.copysign(math.inf, change) if change else 0.0
