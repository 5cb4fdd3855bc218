"""Activation checkpointing on repeated blocks: their insides are computed again in backward.

The gradients stay the same bit for bit: every block runs again on the same inputs with the random
numbers it had. Used where memory binds, or where the user asks for it.
"""

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gpujob_worker.inject.attention import attention_kernel
from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.inject.guards import observe, parallel_wrapper, recompute_refusal, state_refusal
from gpujob_worker.inject.root import RecordedCall, Root, RootPlan
from gpujob_worker.tune.no_trace import no_trace
from gpujob_worker.tune.probe import RootProbe

_TOLERANCE = 1e-6


class BlockCheckpoint:
    """Stands in for a block's call, as `Root` does for the root's."""

    def __init__(self, root: Root, block: torch.nn.Module) -> None:
        self._root = root
        self.block = block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.block._call_impl  # pyright: ignore[reportPrivateUsage]
        if not torch.is_grad_enabled() or not self.block.training:
            return call(*args, **kwargs)
        # The second run is outside the root's call and must choose the same kernel.
        kernel = self._root.running.attention

        def run(*inputs: Any, **keywords: Any) -> Any:
            with attention_kernel(kernel):
                return call(*inputs, **keywords)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


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
        with no_trace(module):
            return self._difference(recorded)

    def _difference(self, recorded: RecordedCall) -> str | None:
        rows = recorded.inputs.rows or 1
        few = RecordedCall(recorded.inputs.narrow(0, min(rows, 4), recorded.inputs.batched()))
        before = observe(self._root.module)
        probe = RootProbe(self._root, few)
        plain = probe.run(RootPlan())
        changed = state_refusal(before, observe(self._root.module))
        if changed is not None:
            return changed
        self.enable()
        try:
            outputs, gradients = plain.compare(probe.run(RootPlan()))
        finally:
            self.disable()
        worst = max(outputs.relative_error, gradients.relative_error)
        return f"results differ by {worst:.1e}" if worst > _TOLERANCE else None
