"""Keeps everything after the last layer in float32 under lower precision.

The layer itself stays in float32 too if it is small, or if it makes many outputs of few inputs and
the type is bfloat16.

A sigmoid in half precision is exactly 1 from 6.3 on, and an output near 300 is rounded to multiples
of 2. Both would change the loss, however close the outputs are relative to their size. If the last
layer has an output for each word, the gradient of its input is a small difference of large sums.
Rounded to the 8 bits of bfloat16, it can delay the learning of a language model that begins at its
full rate (`bench.last_layer`). The 11 bits of TF32 and float16 are enough.
"""

import functools
import math
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import map_tensors
from gpujob_worker.inject.call_settings import CallSetting

HALF_TYPES = (torch.bfloat16, torch.float16)
# The last layer is small up to this part of all products. float32 then costs nothing, although its
# products take a GPU 15 times as long as those of bfloat16. TF32's take twice as long.
SHARE_MAX = 0.005
_CONVOLUTIONS = (torch.nn.modules.conv._ConvNd,)  # pyright: ignore[reportPrivateUsage]
_LOOKUPS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


@dataclass(frozen=True, slots=True)
class Float32Tail(CallSetting):
    """From the output of `layer` on, types are those of the script; with `whole`, from its input
    on.

    With `large`, the layer's products take a noticeable part of the step.
    """

    layer: "weakref.ref[torch.nn.Module]"
    whole: bool
    large: bool

    def around(self) -> AbstractContextManager[object]:
        return self._in_force()

    @contextmanager
    def _in_force(self) -> Generator[None]:
        """Gives the layer its own `forward`. torch's compiler follows it, unlike a
        replaced call.
        """
        layer = self.layer()
        if layer is None or "forward" in vars(layer):
            yield
            return
        vars(layer)["forward"] = _forward_of(layer, self.whole)
        try:
            yield
        finally:
            vars(layer).pop("forward", None)

    def __str__(self) -> str:
        return "the last layer in float32" if self.whole else "float32 after the last layer"


# One function per layer, because compiled code is compiled again for another function.
_forwards: "weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, Any]]" = (
    weakref.WeakKeyDictionary()
)


def _forward_of(layer: torch.nn.Module, whole: bool) -> Any:
    made = _forwards.setdefault(layer, {})
    if whole not in made:
        made[whole] = _make_forward(weakref.ref(layer), type(layer).forward, whole)
    return made[whole]


def _make_forward(owner: "weakref.ref[torch.nn.Module]", plain: Any, whole: bool) -> Any:
    @functools.wraps(plain)
    def after(*args: Any, **kwargs: Any) -> Any:
        return map_tensors(as_float32, plain(owner(), *args, **kwargs))

    @functools.wraps(plain)
    def inside(*args: Any, **kwargs: Any) -> Any:
        layer: Any = owner()
        with torch.autocast(layer.weight.device.type, enabled=False):
            args, kwargs = map_tensors(as_float32, (args, kwargs))
            return plain(layer, *args, **kwargs)

    return inside if whole else after


def as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALF_TYPES else tensor


@contextmanager
def noting_layers(module: torch.nn.Module, seen: list["LayerCall"]) -> Generator[None]:
    """Records each call of a layer with a weight matrix."""

    def note(layer: torch.nn.Module, args: Any, output: Any) -> None:
        del args
        if isinstance(output, torch.Tensor):
            seen.append(LayerCall(layer, _products(layer, output)))

    layers = [layer for layer in module.modules() if _is_product(layer)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a layer, with the number of its multiplications."""

    layer: torch.nn.Module
    products: float


def tail_of(calls: list[LayerCall], kind: torch.dtype) -> Float32Tail | None:
    """Returns the tail of a model that made these calls, under autocast to `kind`; None without
    calls.
    """
    if not calls:
        return None
    last = calls[-1].layer
    share = sum(call.products for call in calls if call.layer is last)
    total = sum(call.products for call in calls)
    large = share > SHARE_MAX * total
    whole = not large or (kind is torch.bfloat16 and _widens(last))
    return Float32Tail(weakref.ref(last), whole, large)


def _widens(layer: Any) -> bool:
    """Returns whether the layer has more outputs than inputs, so that it needs its inputs more
    precisely.

    The inputs of an output are all values that it sums up. In a transposed convolution the stride
    divides them among the places to which it adds.
    """
    outputs, places = layer.weight.shape[0], 1
    if getattr(layer, "transposed", False):
        outputs, places = layer.out_channels, math.prod(layer.stride)
    return outputs**2 * places > layer.weight.numel()


def _is_product(layer: torch.nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    matrix = isinstance(weight, torch.Tensor) and weight.dim() > 1
    leaf = next(layer.children(), None) is None
    return matrix and leaf and not isinstance(layer, _LOOKUPS)


def _products(layer: torch.nn.Module, output: torch.Tensor) -> float:
    """Returns the number of multiplications. Each weight takes part once per place of the
    output.
    """
    weight: Any = layer.weight
    if output.dim() == 0:
        return float(weight.numel())
    channels = output.shape[1 if isinstance(layer, _CONVOLUTIONS) else -1]
    return float(weight.numel() * output.numel() / max(1, channels))
