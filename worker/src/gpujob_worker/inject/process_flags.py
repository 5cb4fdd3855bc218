"""Settings of the whole process that a plan asks for: TF32 products and cuDNN's autotuning.

Backward runs outside the root's call, so these cannot be put around it: they are in force or not.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ProcessFlags:
    """What is switched on beyond the script's own state, which is off wherever one is used."""

    tf32: bool = False
    convolution_autotuning: bool = False


def tf32_refusal() -> str | None:
    precision = torch.get_float32_matmul_precision()
    return None if precision == "highest" else f"the script chose {precision!r} itself"


def convolution_autotuning_refusal(module: torch.nn.Module, signatures: int) -> str | None:
    """Why cuDNN must not try its kernels; `signatures` is how many input shapes were seen."""
    kinds = (torch.nn.modules.conv._ConvNd,)  # pyright: ignore[reportPrivateUsage]
    device = next((p.device.type for p in module.parameters()), "cpu")
    reason: str | None = None
    if device != "cuda":
        reason = f"cuDNN runs on CUDA cards; this is {device}"
    elif not any(isinstance(layer, kinds) for layer in module.modules()):
        reason = "the model has no convolution"
    elif torch.backends.cudnn.benchmark:
        reason = "the script does it itself"
    elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        reason = "the script asks for deterministic kernels"
    elif signatures > 1:
        reason = f"{signatures} input shapes were seen, and every new one would be tried again"
    return reason


def change_flags(before: ProcessFlags, after: ProcessFlags) -> None:
    """Sets what differs; what is equal stays as the script has it."""
    if before.tf32 != after.tf32:
        torch.set_float32_matmul_precision("high" if after.tf32 else "highest")
    if before.convolution_autotuning != after.convolution_autotuning:
        torch.backends.cudnn.benchmark = after.convolution_autotuning


@contextmanager
def flags_in_force(before: ProcessFlags, flags: ProcessFlags) -> Generator[None]:
    change_flags(before, flags)
    try:
        yield
    finally:
        change_flags(flags, before)
