"""Detects modules that the script compiled, and modules around them."""

import sys
from typing import Any

import torch

from gpujob_worker.inject.activation_checkpointing import BlockCheckpoint
from gpujob_worker.inject.wrapped_module import Root


def has_compiled_part(module: torch.nn.Module) -> bool:
    """Returns whether the script compiled the module or one inside it.

    Such code would be compiled again under another setting.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and any(
        isinstance(part, dynamo.OptimizedModule) or _is_compiled_in_place(part)
        for part in module.modules()
    )


def _is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Returns whether the script used the method `compile`.

    Our roots and recomputed blocks take over calls in the same way, and do not count.
    """
    call = vars(module).get("_compiled_call_impl")
    return call is not None and not isinstance(call, (Root, BlockCheckpoint))
