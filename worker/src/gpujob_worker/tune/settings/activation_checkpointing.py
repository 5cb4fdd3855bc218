"""Activation checkpointing: recomputes the activations of repeated blocks in backward."""

from typing import Any

from gpujob_api.settings import Toggle
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.checkpointing_check import checkpointing_refusal
from gpujob_worker.tune.setting import Context, Setting, Target


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


SETTING = ActivationCheckpointingSetting()
