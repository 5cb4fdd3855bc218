"""Batch split: a batch passes through the module in parts, with the gradients of the whole."""

from typing import Any

from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Context, Setting
from gpujob_worker.tune.split_check import split_refusal


class BatchSplitSetting(Setting):
    NAME = "batch_split"
    ITEM = "batch split"
    FIELDS = ("batch_per_step",)
    ORDER = 10
    FOR_MEMORY = True
    OWN = True

    def refusal(self, context: Context) -> str | None:
        if self.switched_off(context):
            return "switched off"
        reason = split_refusal(context.root, context.recorded)
        if context.facts.differentiates_gradients:
            reason = "the script differentiates gradients (create_graph)"
        return reason

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"batch_per_step": applied.plan.rows_per_step}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without_split()


SETTING = BatchSplitSetting()
