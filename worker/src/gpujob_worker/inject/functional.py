"""torch.func around a module's call: transforms, and parameters that are not the module's own."""

import sys
from pathlib import Path

import torch

_FRAMES_MAX = 64
_SWAPPING = (("_functorch", "functional_call.py"), ("utils", "stateless.py"))


def transforms() -> bool:
    """Whether the call is inside `grad`, `vmap` and the like, whose tensors are no plain ones."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore


def called_with_other_parameters() -> str | None:
    """Why this call tells nothing of the module: `functional_call` put other parameters in.

    Whatever runs the module again, as backward of a split does, would find its own ones.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(_FRAMES_MAX):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if Path(frame.f_code.co_filename).parts[-2:] in _SWAPPING:
            return "the script calls it with other parameters than its own (functional_call)"
    return None
