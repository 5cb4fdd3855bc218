"""Backends that answer wrongly in twenty ways, and five that only round differently."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpujob_worker.serving.backend import Tensors

Answer = Callable[[Tensors], dict[str, torch.Tensor]]
Change = Callable[[torch.Tensor], torch.Tensor]
OUTPUT = "output"


def plain(model: nn.Module) -> Answer:
    def run(inputs: Tensors) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {OUTPUT: model(inputs["x"])}

    return run


def _after(change: Change) -> Callable[[nn.Module], Answer]:
    def make(model: nn.Module) -> Answer:
        run = plain(model)
        return lambda inputs: {OUTPUT: change(run(inputs)[OUTPUT])}

    return make


def _swapped(scores: torch.Tensor) -> torch.Tensor:
    if len(scores) < 2:
        return scores
    return torch.cat([scores[1:2], scores[:1], scores[2:]])


def _nan_at_four(scores: torch.Tensor) -> torch.Tensor:
    return scores * torch.nan if len(scores) == 4 else scores


def _one_sign(scores: torch.Tensor) -> torch.Tensor:
    found = scores.clone()
    flat = found.view(-1)
    place = int(flat.abs().argmax())
    flat[place] = -flat[place]
    return found


def _last_zero(scores: torch.Tensor) -> torch.Tensor:
    found = scores.clone()
    found[-1:] = 0
    return found


def _shuffled(scores: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(len(scores)))
    return scores[order]


def _training(model: nn.Module) -> Answer:
    """Layers normalize with the batch. A model without any gets a mean of its own."""
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):  # pyright: ignore
        return plain(model.train())
    return _after(lambda s: s + 0.3 * (s.mean(0, keepdim=True) - s))(model)


def _dropout(model: nn.Module) -> Answer:
    head: Any = model
    original = head.head
    head.head = nn.Sequential(nn.Dropout(0.1).train(), original)
    return plain(model)


def _leak(model: nn.Module) -> Answer:
    """Rows that repeat, as padding does, are taken as zeros and change what is beside them."""
    run = plain(model)

    def leaking(inputs: Tensors) -> dict[str, torch.Tensor]:
        scores = run(inputs)[OUTPUT]
        x = inputs["x"]
        is_padded = len(x) > 1 and bool((x[-1] == x[-2]).all())
        return {OUTPUT: scores * 0.9 if is_padded else scores}

    return leaking


def _int4(model: nn.Module) -> Answer:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                step = parameter.abs().max() / 7
                parameter.copy_((parameter / step).round() * step)
    return plain(model)


def _stale(model: nn.Module) -> Answer:
    run = plain(model)
    before: dict[int, torch.Tensor] = {}

    def answer(inputs: Tensors) -> dict[str, torch.Tensor]:
        scores = run(inputs)[OUTPUT]
        previous = before.get(len(scores), scores)
        before[len(scores)] = scores
        return {OUTPUT: previous}

    return answer


def _overwritten(model: nn.Module) -> Answer:
    run = plain(model)
    buffers: dict[int, torch.Tensor] = {}

    def answer(inputs: Tensors) -> dict[str, torch.Tensor]:
        scores = run(inputs)[OUTPUT]
        buffer = buffers.setdefault(len(scores), torch.empty_like(scores))
        return {OUTPUT: buffer.copy_(scores)}

    return answer


def _missing(model: nn.Module) -> Answer:
    run = plain(model)
    return lambda inputs: {"logits": run(inputs)[OUTPUT]}


WRONG: dict[str, Callable[[nn.Module], Answer]] = {
    "off by one row": _after(lambda s: s.roll(1, 0)),
    "two rows swapped": _after(_swapped),
    "rows shuffled": _after(_shuffled),
    "statistics of the batch": _training,
    "dropout on": _dropout,
    "scaled by 1.05": _after(lambda s: s * 1.05),
    "shifted by 5 % of the usual size": _after(lambda s: s + 0.05 * s.square().mean().sqrt()),
    "NaN at batch 4": _after(_nan_at_four),
    "padding leaks": _leak,
    "weights in int4": _int4,
    "answer of the previous batch": _stale,
    "buffer overwritten": _overwritten,
    "classes reversed": _after(lambda s: s.flip(-1)),
    "type float16": _after(lambda s: s.half()),
    "output renamed": _missing,
    "a row too few": _after(lambda s: s[: max(1, len(s) - 1)]),
    "one sign flipped": _after(_one_sign),
    "first row for all": _after(lambda s: s[:1].expand_as(s).clone()),
    "less the mean of the batch": _after(lambda s: s - s.mean(0, keepdim=True)),
    "last row zero": _after(_last_zero),
}


def _bfloat16(model: nn.Module) -> Answer:
    lowered = model.to(torch.bfloat16)

    def run(inputs: Tensors) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {OUTPUT: lowered(inputs["x"].bfloat16()).float()}

    return run


def _autocast(model: nn.Module) -> Answer:
    def run(inputs: Tensors) -> dict[str, torch.Tensor]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return {OUTPUT: model(inputs["x"]).float()}

    return run


def _double(model: nn.Module) -> Answer:
    exact = model.double()

    def run(inputs: Tensors) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {OUTPUT: exact(inputs["x"].double()).float()}

    return run


def _one_by_one(model: nn.Module) -> Answer:
    run = plain(model)

    def answer(inputs: Tensors) -> dict[str, torch.Tensor]:
        rows = [run({"x": inputs["x"][row : row + 1]})[OUTPUT] for row in range(len(inputs["x"]))]
        return {OUTPUT: torch.cat(rows)}

    return answer


def _permuted(model: nn.Module) -> Answer:
    """The last layer sums its features in another order."""
    head: Any = model
    order = torch.randperm(head.head.in_features, generator=torch.Generator().manual_seed(0))

    class Permuted(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.layer.weight[:, order]
            return nn.functional.linear(x[:, order], weight, self.layer.bias)

    head.head = Permuted(head.head)
    return plain(model)


HARMLESS: dict[str, Callable[[nn.Module], Answer]] = {
    "bfloat16": _bfloat16,
    "autocast": _autocast,
    "float64": _double,
    "one row at a time": _one_by_one,
    "summed in another order": _permuted,
}
