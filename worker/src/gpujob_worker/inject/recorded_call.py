"""One real call of a module, recorded to be repeated for a measurement."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.surroundings import GradMode, Surroundings


@dataclass(slots=True)
class RecordedCall:
    """One real call of the root: its inputs, and the gradients of the loss by its outputs."""

    inputs: CallInputs
    output_gradients: list[torch.Tensor | None] = field(default_factory=list[torch.Tensor | None])
    # Why this call is not representative of a call made for a measurement, or None.
    refusal: str | None = None
    # A few of its samples cannot run alone, because of a hidden state, offsets, a sparse matrix, or
    # no batch.
    whole_only: bool = False
    # The script's contexts around the call. None for a call that is not the script's.
    surroundings: Surroundings | None = None
    # The mode of a call whose answer no backward pass uses. None for a call in training.
    grad_mode: GradMode | None = None
    handles: list[Any] = field(default_factory=list[Any])

    def forget_hooks(self) -> None:
        """Removes the hooks. An output may be a parameter, which would keep its hooks."""
        while self.handles:
            self.handles.pop().remove()

    @property
    def answers(self) -> bool:
        """Whether the script only wants the outputs, so that no gradient is computed."""
        return self.grad_mode is not None

    def gradients(self) -> AbstractContextManager[None]:
        """Returns the gradient mode of another run of the call."""
        return torch.enable_grad() if self.grad_mode is None else self.grad_mode.entered()

    def around(self) -> AbstractContextManager[None]:
        """Returns the script's contexts, to be entered around another run of the call."""
        return nullcontext() if self.surroundings is None else self.surroundings.entered()

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of the script's own autocast, or None without one."""
        found = self.surroundings
        return found.dtype if found is not None and found.autocast else None

    def of(self, inputs: CallInputs) -> "RecordedCall":
        """Returns a call of the same kind with other inputs, whose gradients are not known."""
        return RecordedCall(inputs, surroundings=self.surroundings, grad_mode=self.grad_mode)

    def used(self, outputs: list[torch.Tensor]) -> list[bool]:
        """Returns which outputs the loss uses with gradients; all if nothing was recorded about
        them.
        """
        known = self.output_gradients if len(self.output_gradients) == len(outputs) else []
        seen = [gradient is not None for gradient in known]
        return seen if any(seen) else [True] * len(outputs)

    def gradients_for(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the recorded gradient of each output, or a constant one if it is unknown."""
        known = self.output_gradients if len(self.output_gradients) == len(outputs) else []
        result: list[torch.Tensor] = []
        for index, output in enumerate(outputs):
            gradient = known[index] if known else None
            if gradient is None or gradient.shape != output.shape:
                gradient = torch.full_like(output, 1.0 / max(1, output.numel()))
            result.append(gradient.to(output.dtype))
        return result
