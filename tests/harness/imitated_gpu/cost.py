"""The time of a kernel on the imitated device: by its bytes, FLOP and type, or as scripted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")
_H100 = {torch.float32: 50e12, torch.bfloat16: 500e12, torch.float16: 500e12, torch.float64: 25e12}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation as launched: aten's short name, bytes moved, FLOP, type of the inputs."""

    name: str
    moved_bytes: int
    flop: float
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of the host to launch a kernel, and of the device to run it.

    `scripted` gives kernels by name a fixed time whatever their type is; `by_type` scales what is
    scripted, such as 0.5 for bfloat16. Picklable: it is sent to the process that trains.
    """

    launch_seconds: float = 5e-6
    least_seconds: float = 2e-6
    bytes_per_second: float = 3e12
    copy_bytes_per_second: float = 25e9
    pageable_bytes_per_second: float = 6e9
    pinning_bytes_per_second: float = 10e9
    flop_per_second: Mapping[torch.dtype, float] = field(default_factory=lambda: dict(_H100))
    tf32_flop_per_second: float = 250e12
    scripted: Mapping[str, float] = field(default_factory=dict[str, float])
    by_type: Mapping[torch.dtype, float] = field(default_factory=dict[torch.dtype, float])

    def seconds(self, kernel: Kernel) -> float:
        fixed = self.scripted.get(kernel.name)
        if fixed is not None:
            return fixed * (self.by_type.get(kernel.dtype, 1.0) if kernel.dtype else 1.0)
        rate = self.flop_per_second.get(kernel.dtype or torch.float32, 1e12)
        if kernel.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
            rate = max(rate, self.tf32_flop_per_second)
        return max(
            self.least_seconds, kernel.moved_bytes / self.bytes_per_second, kernel.flop / rate
        )


def kernel_of(func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Kernel:
    """What `func` launched, from its tensors as they lie in host memory."""
    name = func._schema.name.removeprefix("aten::")
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
    dtype = next((t.dtype for t in inputs if t.is_floating_point()), None)
    return Kernel(name, moved, _flop(name, inputs, outputs), dtype)


def _flop(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    if name in _MATRIX_PRODUCTS and outputs and len(inputs) > 1:
        return 2.0 * outputs[0].numel() * inputs[-2].shape[-1]
    if name in ("convolution", "convolution_backward") and len(inputs) > 1:
        weight = inputs[1] if name == "convolution" else inputs[2]
        grid = outputs[0] if name == "convolution" else inputs[0]
        per_point = 2.0 * math.prod(weight.shape[1:])
        return per_point * grid.numel() * (1.0 if name == "convolution" else 2.0)
    if "attention" in name and len(inputs) > 2:
        query = inputs[1] if "backward" in name else inputs[0]
        return 4.0 * query.numel() * query.shape[-2] * (2.5 if "backward" in name else 1.0)
    return 0.0
