"""Activation checkpointing: recomputes the activations of repeated blocks in backward.

It is refused unless it changes nothing on a few samples but memory and time.
"""

from typing import Any

import torch

from gpujob_api.settings import Toggle
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.guards import (
    observe,
    parallel_wrapper,
    recompute_refusal,
    state_refusal,
    statistics_layers,
)
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.probe.side_effects import Draws, no_trace, put_back
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.setting import Context, Setting, Target

_TOLERANCE = 1e-6
_ROWS = 4


class ActivationCheckpointingSetting(Setting):
    NAME = "activation_checkpointing"
    ITEM = "activation checkpointing"
    FIELDS = ("activation_checkpointing",)
    ORDER = 20
    FOR_MEMORY = True
    OWN = True

    def refusal(self, context: Context) -> str | None:
        if self.switched_off(context):
            return "switched off"
        if context.settings.activation_checkpointing is Toggle.OFF:
            return "asked not to"
        return checkpointing_refusal(ActivationCheckpointing(context.root), context.recorded)

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"activation_checkpointing": applied.activation_checkpointing}

    def drop(self, applied: Applied) -> None:
        applied.activation_checkpointing = False

    def apply(self, target: Target) -> None:
        if target.root is not None:
            ActivationCheckpointing(target.root).enable()

    def undo(self, target: Target) -> None:
        if target.root is not None:
            ActivationCheckpointing(target.root).disable()


def checkpointing_refusal(
    checkpointing: ActivationCheckpointing, recorded: RecordedCall
) -> str | None:
    """Returns why checkpointing must stay off, or None if a run with it gave the same gradients as
    one without it.
    """
    module = checkpointing.root.module
    wrapper = parallel_wrapper(module)
    if wrapper is not None:
        return f"{wrapper} owns the gradients"
    if not checkpointing.blocks:
        return "no list of two or more like blocks with parameters"
    for block in checkpointing.blocks:
        reason = recompute_refusal(block)
        if reason is not None:
            return reason
        if "_compiled_call_impl" in vars(block):
            return "the script compiles the blocks itself"
    try:
        with no_trace(module):
            return _difference(checkpointing, recorded)
    except Exception as error:
        return f"a probe failed: {type(error).__name__}: {error}"[:160]


def _difference(checkpointing: ActivationCheckpointing, recorded: RecordedCall) -> str | None:
    root = checkpointing.root
    few = recorded.of(recorded.inputs.first(_ROWS))
    before = observe(root.module)
    counted = _counted(root.module)
    starts = {name: buffer.detach().clone() for name, buffer in counted.items()}
    probe = RootProbe(root, few)
    plain = probe.run(RootPlan())
    changed = state_refusal(before, observe(root.module), frozenset(counted))
    if changed is not None:
        return changed
    once = {name: buffer.detach().clone() for name, buffer in counted.items()}
    for name, buffer in counted.items():
        put_back(buffer, starts[name])
    draws: list[Draws] = []
    checkpointing.enable()
    try:
        again = probe.run(RootPlan(), lambda: draws.append(Draws(root.module)))
    finally:
        checkpointing.disable()
    # A recomputation restores torch's generator and no other.
    source = next((each.source for each in draws), None)
    if source is not None:
        return f"the blocks draw from {source}, and would draw again in backward"
    outputs, gradients = plain.compare(again)
    worst = max(outputs.relative_error, gradients.relative_error)
    if worst > _TOLERANCE:
        return f"results differ by {worst:.1e}"
    twice = [name for name, buffer in counted.items() if not torch.equal(buffer, once[name])]
    return f"statistics {twice[0]} would be counted twice" if twice else None


def _counted(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers of running statistics by name."""
    owners = {id(layer) for layer in statistics_layers(module)}
    return {
        f"{name}.{key}" if name else key: buffer
        for name, layer in module.named_modules()
        if id(layer) in owners
        for key, buffer in layer.named_buffers(recurse=False)
    }


SETTING = ActivationCheckpointingSetting()
