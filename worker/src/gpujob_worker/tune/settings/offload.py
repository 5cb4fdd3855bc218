"""Offloads activations and optimizer state to host memory, as the last resort for a
memory limit.
"""

from dataclasses import replace
from typing import Any

from gpujob_worker.inject.offload import offload_refusal
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Context, Setting


class OffloadSetting(Setting):
    NAME = "offload"
    ITEM = "offload"
    FIELDS = ("activation_offload", "optimizer_offload")
    ORDER = 25
    SAID_WITHOUT_ROOT = False
    FOR_MEMORY = True
    OWN = True

    def refusal(self, context: Context) -> str | None:
        if self.switched_off(context):
            return "switched off"
        return offload_refusal(context.root.device, compiled=context.plan.compiles)

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {
            "activation_offload": applied.plan.activations_on_host,
            "optimizer_offload": applied.optimizer_offload,
        }

    def drop(self, applied: Applied) -> None:
        applied.plan = replace(applied.plan, activations_on_host=False)
        applied.optimizer_offload = False


SETTING = OffloadSetting()
