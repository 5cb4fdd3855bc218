"""Modules that the script compiled, and what lies around them."""

import sys
from typing import Any

import torch

from gpujob_worker.inject.activation_checkpointing import BlockCheckpoint
from gpujob_worker.inject.wrapped_module import Root


def has_compiled_part(module: torch.nn.Module) -> bool:
    """Whether the script compiled the module or one inside it, whose code would be made again under
    another setting.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and any(
        isinstance(part, dynamo.OptimizedModule) or _is_compiled_in_place(part)
        for part in module.modules()
    )


def _is_compiled_in_place(module: torch.nn.Module) -> bool:
    """By its method `compile`. A root of ours and a block that is computed again take the calls in
    the same way.
    """
    call = vars(module).get("_compiled_call_impl")
    return call is not None and not isinstance(call, (Root, BlockCheckpoint))
