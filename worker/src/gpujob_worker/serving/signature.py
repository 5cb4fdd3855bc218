"""The inputs and outputs of a model: their names, types and shapes, and how it is called."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from gpujob_worker.serving.backend import Tensors

ONLY_INPUT, ONLY_OUTPUT = "input", "output"


class InputError(ValueError):
    """Inputs that the model does not take. The message names the input and the next step."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `shape` is that of one sample, without the batch dimension."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    def problem(self, tensor: torch.Tensor) -> str | None:
        """Returns why the tensor is not a batch of this input, or None."""
        if tensor.dtype != self.dtype:
            return f"{self.name}: must have type {self.dtype}; got {tensor.dtype}"
        if tensor.dim() != len(self.shape) + 1 or tuple(tensor.shape[1:]) != self.shape:
            wanted = ["samples", *map(str, self.shape)]
            text = f"must have shape [{', '.join(wanted)}]; got {list(tensor.shape)}"
            return f"{self.name}: {text}"
        return None


@dataclass(frozen=True, slots=True)
class Signature:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    # Whether inputs are passed by name, as to `forward(input_ids, attention_mask)`.
    by_name: bool

    def samples(self, inputs: Tensors) -> int:
        """Returns the number of samples. Raises `InputError`, which names the input."""
        names = [spec.name for spec in self.inputs]
        missing, unknown = set(names) - set(inputs), set(inputs) - set(names)
        if missing or unknown:
            got = ", ".join(sorted(inputs)) or "none"
            raise InputError(f"inputs must be {', '.join(names)}; got {got}")
        for spec in self.inputs:
            problem = spec.problem(inputs[spec.name])
            if problem is not None:
                raise InputError(problem)
        sizes = {name: len(tensor) for name, tensor in inputs.items()}
        if len(set(sizes.values())) != 1:
            text = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(f"all inputs must have the same number of samples; got {text}")
        size = next(iter(sizes.values()))
        if size == 0:
            raise InputError("inputs must have at least one sample; got 0")
        return size

    def call(self, model: Any, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Calls the model with the inputs, and returns its outputs by name."""
        if self.by_name:
            return named(model(**inputs))
        return named(model(*(inputs[spec.name] for spec in self.inputs)))


def signature(model: torch.nn.Module, examples: Tensors) -> Signature:
    """Returns the signature that the examples show. The model is called once, with the first
    two samples. Raises `InputError` for examples that it does not take.
    """
    if not examples:
        raise InputError("examples: must have at least one tensor")
    sizes = {name: len(tensor) if tensor.dim() else 0 for name, tensor in examples.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(
            f"examples: all must have the same number of samples, at least 1; got {text}"
        )
    inputs = tuple(
        TensorSpec(name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in examples.items()
    )
    found = Signature(inputs, (), _takes_names(model, list(examples)))
    device = next((value.device for value in model.parameters()), torch.device("cpu"))
    few = {name: tensor[:2].to(device) for name, tensor in examples.items()}
    size = len(next(iter(few.values())))
    with torch.inference_mode():
        try:
            outputs = found.call(model, few)
        except Exception as error:
            text = f"examples: the model does not take them: {type(error).__name__}: {error}"
            raise InputError(text) from error
    for name, tensor in outputs.items():
        if not tensor.dim() or len(tensor) != size:
            shape = list(tensor.shape)
            text = f"{name}: the first dimension must be that of the samples, {size}; got {shape}"
            raise InputError(f"the model's output {text}")
    specs = tuple(
        TensorSpec(name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in outputs.items()
    )
    return Signature(inputs, specs, found.by_name)


def _takes_names(model: torch.nn.Module, names: Sequence[str]) -> bool:
    """Returns whether `forward` has parameters of these names. A single tensor may have any."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return len(names) > 1
    known = {
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    return set(names) <= known


def named(output: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model's output by name. Raises `InputError` for another type."""
    if isinstance(output, torch.Tensor):
        return {ONLY_OUTPUT: output}
    if isinstance(output, Mapping):
        items = cast("Mapping[str, Any]", output).items()
        found = {str(name): value for name, value in items if isinstance(value, torch.Tensor)}
    elif isinstance(output, list | tuple):
        parts = cast("Sequence[Any]", output)
        tensors = (value for value in parts if isinstance(value, torch.Tensor))
        found = {f"{ONLY_OUTPUT}_{number}": value for number, value in enumerate(tensors)}
    else:
        found = {}
    if not found:
        raise InputError(f"the model must return tensors; got {type(output).__name__}")
    return found
