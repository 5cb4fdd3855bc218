"""Compiles a module's repeated blocks one by one, instead of the whole module."""

from dataclasses import replace
from typing import Any

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.compiling import blocks_refusal
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Context, Setting


class RegionalCompileSetting(Setting):
    NAME = "regional_compile"
    ITEM = "compile blocks"
    FIELDS = ("regional_compile",)
    ORDER = 71
    SAID_WITHOUT_ROOT = False

    def refusal(self, context: Context) -> str | None:
        if self.switched_off(context):
            return "switched off"
        if context.applied.activation_checkpointing:
            return "the blocks are computed again in backward"
        return blocks_refusal(context.root.module)

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"regional_compile": applied.plan.compiled_blocks is not None}

    def keep_only(self, applied: Applied, agreed: TunedSettings) -> None:
        """Does nothing, because it follows `compile`, which decides whether anything is
        compiled.
        """

    def drop(self, applied: Applied) -> None:
        applied.plan = replace(applied.plan, compiled_blocks=None)


SETTING = RegionalCompileSetting()
