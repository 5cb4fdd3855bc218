"""Keeps activations and optimizer state in host memory while they are not needed.

Copies change no bit. Both take time on the bus, and are for jobs that do not fit otherwise.
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

# Smaller tensors are not worth a copy.
ACTIVATION_BYTES_MIN = 64 * 1024
STATE_ELEMENTS_MIN = 1024
_HOST = torch.device("cpu")


def offload_refusal(device: torch.device, *, compiled: bool = False) -> str | None:
    if device.type != "cuda":
        return "it is in host memory already"
    return "a compiled graph keeps what it needs itself" if compiled else None


@contextmanager
def activations_on_host(module: torch.nn.Module) -> Generator[None]:
    """Copies tensors saved for backward to pinned host memory, and back in backward.

    torch's `save_on_cpu` returns contiguous tensors only, for which other kernels with other bits
    run. It also moves parameters and small tensors.
    """
    parameters = {parameter.data_ptr() for parameter in module.parameters()}

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        large = tensor.numel() * tensor.element_size() >= ACTIVATION_BYTES_MIN
        if not large or tensor.data_ptr() in parameters:
            return tensor.device, tensor.detach()
        return tensor.device, to_host(tensor)

    def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, tensor = packed
        return tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in host memory, pinned if that speeds up the copy, and ordered with the
    stream.
    """
    pinned = tensor.device.type == "cuda"
    # It is always a copy, because a saved tensor must not change with the original.
    copy = torch.empty_like(tensor, device=_HOST, pin_memory=pinned, requires_grad=False)
    return copy.copy_(tensor.detach(), non_blocking=pinned)


class OptimizerOffload:
    """Keeps an optimizer's large state tensors in host memory between its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # A weak reference, because the script may drop the optimizer.
        self._of = weakref.ref(optimizer)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._of()

    def step_starts(self) -> None:
        for parameter, state, key in self._large():
            state[key] = state[key].to(parameter.device, non_blocking=True)

    def step_ends(self) -> None:
        for _, state, key in self._large():
            state[key] = to_host(state[key])

    def undo(self) -> None:
        self.step_starts()

    def _large(self) -> list[tuple[torch.Tensor, dict[str, Any], str]]:
        optimizer = self.optimizer
        return [
            (parameter, state, key)
            for parameter, state in (optimizer.state.items() if optimizer is not None else ())
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.numel() >= STATE_ELEMENTS_MIN
        ]
