"""The examples that a user gives: tensors, or the path of a file with them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.signature import ONLY_INPUT, InputError

NEXT_STEP = "save a batch of real inputs with safetensors.torch.save_file({name: tensor}, path)"

Examples = Tensors | torch.Tensor | str | os.PathLike[str]


def read_examples(examples: Examples) -> dict[str, torch.Tensor]:
    """Returns the examples by the names of the inputs, on the CPU.

    A single tensor is the input `input`. A path is of a file of safetensors. Raises `InputError`
    with the next step for anything else.
    """
    given: Any = examples
    if isinstance(given, str | os.PathLike):
        given = _from_file(Path(cast("str", given)))
    if isinstance(given, torch.Tensor):
        given = {ONLY_INPUT: given}
    if not isinstance(given, Mapping):
        raise InputError(
            "examples: must be a tensor, a dict of tensors by the names of the inputs, or the path"
            f" of a .safetensors file; got {type(given).__name__}"
        )
    found = cast("Mapping[Any, Any]", given)
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"examples: must have names and tensors; got {type(tensor).__name__} for {name!r}"
            )
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def _from_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"examples: there is no file {path}; {NEXT_STEP}") from None
    except (OSError, SafetensorError) as error:
        text = f"{path} is not a file of safetensors: {error}; {NEXT_STEP}"
        raise InputError(f"examples: {text}") from None
