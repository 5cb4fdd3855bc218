"""The samples with which backends are compared: read, counted, and repeated if they are few."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.rows import count, first_rows
from gpujob_worker.serving.signature import ONLY_INPUT, InputError

SAMPLES = 256
SAMPLES_MIN = 8
_NEXT = "save a batch of real inputs with safetensors.torch.save_file({name: tensor}, path)"

Examples = Tensors | torch.Tensor | str | Path


@dataclass(frozen=True, slots=True)
class Calibration:
    """`distinct` of the samples are different; the others repeat them."""

    inputs: Tensors
    distinct: int

    @property
    def note(self) -> str:
        """Returns what a report says about few samples, or an empty text."""
        if self.distinct >= SAMPLES:
            return ""
        return f"compared on {self.distinct} samples, {SAMPLES} are better"


def read_examples(examples: Examples) -> dict[str, torch.Tensor]:
    """Returns tensors by name, on the CPU. Raises `InputError`, which names `examples` and the next
    step. A file is read without pickle.
    """
    if isinstance(examples, torch.Tensor):
        return {ONLY_INPUT: examples.detach().cpu()}
    if isinstance(examples, Mapping):
        return {name: tensor.detach().cpu() for name, tensor in examples.items()}
    path = Path(examples)
    if not path.is_file():
        raise InputError(f"examples: there is no file {path}; {_NEXT}")
    try:
        found = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"examples: {path} is not a safetensors file: {error}; {_NEXT}") from error
    if not found:
        raise InputError(f"examples: {path} has no tensors; {_NEXT}")
    return found


def calibration(examples: Examples) -> Calibration:
    """Returns at least `SAMPLES` samples for a measurement. Raises `InputError` if there are so few
    that a comparison would show nothing.
    """
    tensors = read_examples(examples)
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors.values()}
    found = min(sizes, default=0)
    if len(sizes) != 1 or found < SAMPLES_MIN:
        got = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise InputError(
            f"examples: a measurement needs at least {SAMPLES_MIN} samples in each input, better"
            f" {SAMPLES}; got {got or 'no tensors'}; {_NEXT}"
        )
    total = count(tensors)
    inputs = tensors if total >= SAMPLES else first_rows(tensors, SAMPLES)
    return Calibration(
        {name: tensor[:SAMPLES] for name, tensor in inputs.items()}, min(total, SAMPLES)
    )
