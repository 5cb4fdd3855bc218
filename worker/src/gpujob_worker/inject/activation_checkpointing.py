"""Activation checkpointing of repeated blocks: their activations are recomputed in backward.

The gradients stay bitwise equal, because every block runs again on the same inputs with the same
random numbers. A BatchNorm can take part, because its result does not depend on its running
statistics. The second run's update of them is undone. Used if memory requires it or the user
requests it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.inject.call_settings import around
from gpujob_worker.inject.guards import statistics_layers
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.side_effects import put_back


class CountedOnce:
    """Restores the first run's statistics after a second run."""

    def __init__(self, block: torch.nn.Module) -> None:
        self._buffers = [
            buffer for layer in statistics_layers(block) for buffer in layer.buffers(recurse=False)
        ]
        self._values: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self._values = [buffer.detach().clone() for buffer in self._buffers]

    def __exit__(self, *_: object) -> None:
        for buffer, value in zip(self._buffers, self._values, strict=True):
            put_back(buffer, value)
        self._values = []


class BlockCheckpoint:
    """Replaces a block's call as `Root` replaces the root's."""

    def __init__(self, root: Root, block: torch.nn.Module) -> None:
        self._root = root
        self.block = block

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # as for the root: copies of the block stay unchanged

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.block._call_impl  # pyright: ignore[reportPrivateUsage]
        if not torch.is_grad_enabled() or not self.block.training:
            return call(*args, **kwargs)
        # The second run is outside the root's call, and must choose the same kernels.
        settings = self._root.running.settings

        def run(*inputs: Any, **keywords: Any) -> Any:
            with around(settings):
                return call(*inputs, **keywords)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), CountedOnce(self.block)

        return checkpoint(
            run, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **kwargs
        )


class ActivationCheckpointing:
    """Enables and disables checkpointing of one root's blocks."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.blocks = repeated_blocks(root.module)

    def enable(self) -> None:
        for block in self.blocks:
            block._compiled_call_impl = BlockCheckpoint(self.root, block)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def disable(self) -> None:
        for block in self.blocks:
            if isinstance(vars(block).get("_compiled_call_impl"), BlockCheckpoint):
                vars(block).pop("_compiled_call_impl")
