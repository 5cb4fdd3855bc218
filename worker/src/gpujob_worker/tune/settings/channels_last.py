"""channels_last for images, with which convolutions on many GPUs are faster.

The root's input images get the channels-last format. Parameters keep their memory format, so that
nothing changes for the script or the optimizer. Convolutions follow the format of their input.
Outputs are converted back to channels first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.call_inputs import CallInputs, map_tensors
from gpujob_worker.inject.call_settings import CallSetting
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting

_IMAGE_DIMENSIONS = 4
_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)

# Image sizes of one sample that were verified. Other sizes are passed through unchanged.
SampleShapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ChannelsLast(CallSetting):
    """channels_last for image sizes that were verified."""

    shapes: SampleShapes

    def fits(self, inputs: CallInputs) -> bool:
        return sample_shapes(inputs) == self.shapes

    def before(self, inputs: CallInputs) -> CallInputs:
        return to_channels_last(inputs)

    def after(self, output: Any) -> Any:
        return to_channels_first(output)


def sample_shapes(inputs: CallInputs) -> SampleShapes:
    return tuple(tuple(leaf.shape[1:]) for leaf in inputs.leaves if _is_image(leaf))


def channels_last_refusal(module: torch.nn.Module, inputs: CallInputs) -> str | None:
    layers = [layer for layer in module.modules() if isinstance(layer, _CONVOLUTIONS)]
    images = [leaf for leaf in inputs.leaves if _is_image(leaf)]
    if not layers:
        return "the model has no convolution of images"
    if not images:
        return "the call has no input of four dimensions"
    if any(_lies_last(tensor) for tensor in (*images, *(layer.weight for layer in layers))):
        return "the script does it itself"
    return None


def to_channels_last(inputs: CallInputs) -> CallInputs:
    return inputs.with_leaves(
        tuple(
            leaf.contiguous(memory_format=torch.channels_last) if _is_image(leaf) else leaf
            for leaf in inputs.leaves
        )
    )


def to_channels_first(output: Any) -> Any:
    return map_tensors(lambda t: t.contiguous() if _lies_last(t) else t, output)


def _is_image(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.dim() == _IMAGE_DIMENSIONS
        and leaf.is_floating_point()
    )


def _lies_last(tensor: torch.Tensor) -> bool:
    last = tensor.dim() == _IMAGE_DIMENSIONS and not tensor.is_contiguous()
    return last and tensor.is_contiguous(memory_format=torch.channels_last)


class ChannelsLastSetting(Setting):
    NAME = "channels_last"
    ITEM = "channels_last"
    FIELDS = ("channels_last",)
    ORDER = 50

    def refusal(self, context: Context) -> str | None:
        reason = self.not_measured(context)
        return reason or channels_last_refusal(context.root.module, context.recorded.inputs)

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        shapes = sample_shapes(context.recorded.inputs)
        yield Candidate(context.plan.having(ChannelsLast(shapes)))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        return next(self.tried(context)) if tuned.channels_last else None

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"channels_last": applied.plan.setting(ChannelsLast) is not None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(ChannelsLast)


SETTING = ChannelsLastSetting()
