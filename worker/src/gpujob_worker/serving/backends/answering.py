"""The model as a function of tensors in the signature's order, in one precision.

Compilers and exporters get this module instead of the model itself: it takes and returns tensors
only, and casts are inside it. What it returns has the types of the model as written.
"""

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.signature import Signature

LOWER = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}
_SAMPLES_TRIED = 2


class Answering(nn.Module):
    """`forward(*inputs)` returns a tuple of outputs. `lower` is the type of the weights, or, with
    `autocast`, that of the products.
    """

    def __init__(
        self,
        model: nn.Module,
        signature: Signature,
        lower: torch.dtype | None = None,
        *,
        autocast: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.signature = signature
        self.lower = lower
        self.autocast = autocast
        self.device_type = device_of(model).type

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.lower is not None and not self.autocast:
            inputs = tuple(_lowered(tensor, self.lower) for tensor in inputs)
        names = (spec.name for spec in self.signature.inputs)
        with self._casting():
            outputs = self.signature.call(self.model, dict(zip(names, inputs, strict=True)))
        return tuple(outputs[spec.name].to(spec.dtype) for spec in self.signature.outputs)

    def _casting(self) -> AbstractContextManager[object]:
        if not self.autocast:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.lower)


def answering(
    model: nn.Module, signature: Signature, precision: Precision, examples: Tensors
) -> Answering:
    """Returns the model in a precision. The model itself keeps its weights.

    Weights are lowered in a copy. A model that creates float32 tensors on its own cannot run with
    lower weights, so it gets autocast instead.
    """
    lower = LOWER.get(precision)
    if lower is None:
        return Answering(model, signature).eval()
    device = device_of(model)
    few = [examples[spec.name][:_SAMPLES_TRIED].to(device) for spec in signature.inputs]
    try:
        lowered = Answering(copy.deepcopy(model).to(lower), signature, lower).eval()
        with torch.inference_mode():
            lowered(*few)
    except (RuntimeError, TypeError, ValueError):
        return Answering(model, signature, lower, autocast=True).eval()
    return lowered


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the first parameter or buffer, or the CPU."""
    tensors = (tensor for found in (model.parameters(), model.buffers()) for tensor in found)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _lowered(tensor: torch.Tensor, lower: torch.dtype) -> torch.Tensor:
    return tensor.to(lower) if tensor.is_floating_point() else tensor
