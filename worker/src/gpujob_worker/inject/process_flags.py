"""Settings of the whole process that a plan contains: TF32 products and cuDNN's autotuning.

Backward runs outside the root's call, so these cannot be applied around the call only.
"""

import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter

import torch

from gpujob_worker.inject.call_settings import CallSetting

# The flags by which `torch.backends` computes float32 in TF32, and their values without it. The
# newer interface comes last, because a flag that is off in the older one may still be on in it.
_TF32_FLAGS: tuple[tuple[str, bool | str], ...] = (
    ("cuda.matmul.allow_tf32", False),
    ("cudnn.allow_tf32", False),
    ("cuda.matmul.fp32_precision", "ieee"),
    ("cudnn.conv.fp32_precision", "ieee"),
    ("cudnn.rnn.fp32_precision", "ieee"),
)


@dataclass(frozen=True, slots=True)
class Tf32(CallSetting):
    """float32 matrix products in TF32. Used only if it is off in the script."""

    def switch(self, on: bool) -> None:
        if on or float32_products() == "high":
            torch.set_float32_matmul_precision("high" if on else "highest")


@dataclass(frozen=True, slots=True)
class ConvolutionAutotuning(CallSetting):
    """cuDNN benchmarks its kernels for each new shape. Used only if it is off in the script."""

    def switch(self, on: bool) -> None:
        torch.backends.cudnn.benchmark = on


def float32_products() -> str:
    """Returns how the script lets float32 products be computed: "highest" unless it chose
    otherwise.

    The older interface raises an error if the script used torch's newer one.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        chosen = str(torch.backends.cuda.matmul.fp32_precision)
        return "highest" if chosen in ("none", "ieee") else chosen


def tf32_refusal() -> str | None:
    products = float32_products()
    if products != "highest":
        return f"the script chose {products!r} itself"
    try:
        torch.get_float32_matmul_precision()
    except RuntimeError:
        return "the script sets torch's fp32_precision, which excludes the older switch"
    return None


@contextmanager
def without_tf32() -> Generator[None]:
    """Computes products and cuDNN's layers in plain float32, and restores the script's choice
    afterwards.

    Each flag is restored through the interface by which it was read. torch raises in the older one
    if the two do not agree.
    """
    restoring = ExitStack()
    try:
        # Some versions of torch warn about the older interface.
        with _no_warnings():
            _switch_tf32_off(restoring)
        yield
    finally:
        with _no_warnings():
            restoring.close()


@contextmanager
def _no_warnings() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _switch_tf32_off(restoring: ExitStack) -> None:
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:
        products = "highest"  # the script used the newer interface, which is handled next
    if products != "highest":
        restoring.callback(torch.set_float32_matmul_precision, products)
        torch.set_float32_matmul_precision("highest")
    for path, off in _TF32_FLAGS:
        chosen = _backend_flag(path)
        if chosen in (True, "tf32"):
            restoring.callback(_set_backend_flag, path, chosen)
            _set_backend_flag(path, off)


def _backend_flag(path: str) -> bool | str | None:
    """Returns the flag, or None if this torch does not have it or raises."""
    try:
        return attrgetter(path)(torch.backends)
    except (AttributeError, RuntimeError):
        return None


def _set_backend_flag(path: str, value: bool | str) -> None:
    owner, _, name = path.rpartition(".")
    setattr(attrgetter(owner)(torch.backends), name, value)


def convolution_autotuning_refusal(module: torch.nn.Module, signatures: int) -> str | None:
    """Returns why cuDNN must not benchmark its kernels, or None.

    `signatures` is the number of input shapes seen so far.
    """
    kinds = (torch.nn.modules.conv._ConvNd,)  # pyright: ignore[reportPrivateUsage]
    device = next((p.device.type for p in module.parameters()), "cpu")
    reason: str | None = None
    if device != "cuda":
        reason = f"cuDNN runs on CUDA GPUs; this is {device}"
    elif not any(isinstance(layer, kinds) for layer in module.modules()):
        reason = "the model has no convolution"
    elif torch.backends.cudnn.benchmark:
        reason = "the script does it itself"
    elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        reason = "the script asks for deterministic kernels"
    elif signatures > 1:
        reason = f"{signatures} input shapes were seen, and every new one would be tried again"
    return reason
