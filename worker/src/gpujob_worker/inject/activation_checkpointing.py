"""Activation checkpointing on repeated blocks: their insides are computed again in backward.

The gradients stay the same bit for bit: every block runs again on the same inputs with the random
numbers it had. A BatchNorm takes part, because its result does not depend on the statistics that it
counts: what the second run counts is put back. Used where memory binds, or where the user asks.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gpujob_worker.inject.attention import attention_kernel
from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.inject.guards import (
    observe,
    parallel_wrapper,
    recompute_refusal,
    state_refusal,
    statistics_layers,
)
from gpujob_worker.inject.wrapped_module import RecordedCall, Root, RootPlan
from gpujob_worker.probe.side_effects import no_trace, put_back
from gpujob_worker.tune.probe import RootProbe

_TOLERANCE = 1e-6


class CountedOnce:
    """Around a second run: what layers count of their inputs was counted in the first one."""

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
    """Stands in for a block's call, as `Root` does for the root's."""

    def __init__(self, root: Root, block: torch.nn.Module) -> None:
        self._root = root
        self.block = block

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # as for the root: copies of the block stay plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.block._call_impl  # pyright: ignore[reportPrivateUsage]
        if not torch.is_grad_enabled() or not self.block.training:
            return call(*args, **kwargs)
        # The second run is outside the root's call and must choose the same kernel.
        kernel = self._root.running.attention

        def run(*inputs: Any, **keywords: Any) -> Any:
            with attention_kernel(kernel):
                return call(*inputs, **keywords)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), CountedOnce(self.block)

        return checkpoint(
            run, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **kwargs
        )


class ActivationCheckpointing:
    """Turns checkpointing of one root's blocks on and off."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self.blocks = repeated_blocks(root.module)

    def enable(self) -> None:
        for block in self.blocks:
            block._compiled_call_impl = BlockCheckpoint(self._root, block)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def disable(self) -> None:
        for block in self.blocks:
            if isinstance(vars(block).get("_compiled_call_impl"), BlockCheckpoint):
                vars(block).pop("_compiled_call_impl")

    def refusal(self, recorded: RecordedCall) -> str | None:
        """Why it must stay off; None when a run with and without it gave the same gradients."""
        module = self._root.module
        wrapper = parallel_wrapper(module)
        if wrapper is not None:
            return f"{wrapper} owns the gradients"
        if not self.blocks:
            return "no list of two or more like blocks with parameters"
        for block in self.blocks:
            reason = recompute_refusal(block)
            if reason is not None:
                return reason
            if "_compiled_call_impl" in vars(block):
                return "the script compiles the blocks itself"
        try:
            with no_trace(module):
                return self._difference(recorded)
        except Exception as error:
            return f"a probe failed: {type(error).__name__}: {error}"[:160]

    def _difference(self, recorded: RecordedCall) -> str | None:
        rows = recorded.inputs.rows or 1
        few = RecordedCall(recorded.inputs.narrow(0, min(rows, 4), recorded.inputs.batched()))
        before = observe(self._root.module)
        counted = _counted(self._root.module)
        starts = {name: buffer.detach().clone() for name, buffer in counted.items()}
        probe = RootProbe(self._root, few)
        plain = probe.run(RootPlan())
        changed = state_refusal(before, observe(self._root.module), frozenset(counted))
        if changed is not None:
            return changed
        once = {name: buffer.detach().clone() for name, buffer in counted.items()}
        for name, buffer in counted.items():
            put_back(buffer, starts[name])
        self.enable()
        try:
            outputs, gradients = plain.compare(probe.run(RootPlan()))
        finally:
            self.disable()
        worst = max(outputs.relative_error, gradients.relative_error)
        if worst > _TOLERANCE:
            return f"results differ by {worst:.1e}"
        twice = [name for name, buffer in counted.items() if not torch.equal(buffer, once[name])]
        return f"statistics {twice[0]} would be counted twice" if twice else None


def _counted(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers in which layers count statistics of their inputs, by name."""
    owners = {id(layer) for layer in statistics_layers(module)}
    return {
        f"{name}.{key}" if name else key: buffer
        for name, layer in module.named_modules()
        if id(layer) in owners
        for key, buffer in layer.named_buffers(recurse=False)
    }
