"""What is around a module's call: transforms, tracers, parameters that are not the module's own."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.fx

_FRAMES_MAX = 64
_SWAPPING = (("_functorch", "functional_call.py"), ("utils", "stateless.py"))


def transforms() -> bool:
    """Whether the call is inside `grad`, `vmap` and the like, whose tensors are no plain ones."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore


def is_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether operations are written down: by jit.trace, export, fx, or a mode such as a counter.

    Our own would be written down with the script's, and such a call is no step of a training.
    """
    modes: int = torch._C._len_torch_dispatch_stack()  # pyright: ignore
    return bool(
        modes
        or torch._C._is_tracing()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        or torch.compiler.is_exporting()
        or any(isinstance(value, torch.fx.Proxy) for value in (*args, *kwargs.values()))
    )


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
