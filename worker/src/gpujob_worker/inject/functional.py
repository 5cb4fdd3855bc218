"""Detects what surrounds a module's call: transforms, tracers, and parameters that are not the
module's own.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.fx

_FRAMES_MAX = 64
# torch 2.7 is the first version that distinguishes an export from a compilation.
_is_exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", torch.compiler.is_compiling
)
_SWAPPING = (("_functorch", "functional_call.py"), ("utils", "stateless.py"))


def transforms() -> bool:
    """Returns whether the call is inside `grad`, `vmap` and the like, whose tensors are not plain
    ones.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore


def is_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether operations are recorded, by jit.trace, export, fx, or a mode such as a
    counter.

    Injected operations would be recorded with the script's, and such a call is no training step.
    """
    modes: int = torch._C._len_torch_dispatch_stack()  # pyright: ignore
    return bool(
        modes
        or torch._C._is_tracing()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        or _is_exporting()
        or any(isinstance(value, torch.fx.Proxy) for value in (*args, *kwargs.values()))
    )


def called_with_other_parameters() -> str | None:
    """Returns why this call is not typical of the module: `functional_call` replaced its
    parameters. None otherwise.

    Another run of the module, as in backward of a split, would use its own parameters.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(_FRAMES_MAX):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if Path(frame.f_code.co_filename).parts[-2:] in _SWAPPING:
            return "the script calls it with other parameters than its own (functional_call)"
    return None
