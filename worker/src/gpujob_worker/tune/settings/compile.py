"""Compilation of the whole module, and its replay as CUDA graphs (`compile_choice`)."""

from dataclasses import replace
from typing import Any

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.compiling import compile_refusal
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Context, Setting


class CompileSetting(Setting):
    NAME = "compile"
    ITEM = "compile"
    FIELDS = ("compile", "compile_beside", "dynamic_shapes", "cuda_graphs")
    ORDER = 70

    def refusal(self, context: Context) -> str | None:
        if self.switched_off(context):
            return "switched off"
        # Torch would raise in the backward pass of compiled code, which cannot be repeated.
        if context.facts.differentiates_gradients:
            return "the script differentiates gradients (create_graph)"
        if context.facts.goes_back_twice:
            return "the script goes back twice through one call (retain_graph)"
        return compile_refusal(context.root.module, context.root.device)

    def tuned(self, applied: Applied) -> dict[str, Any]:
        plan = applied.plan
        any_size = plan.compiles and plan.any_size
        return {
            "compile": plan.compiles,
            # This module only. `TrainedModel` has the others.
            "compile_beside": False,
            "dynamic_shapes": any_size,
            "cuda_graphs": plan.cuda_graphs,
        }

    def keep_only(self, applied: Applied, agreed: TunedSettings) -> None:
        if not agreed.compile:
            self.drop(applied)
        graphs = applied.plan.cuda_graphs and agreed.cuda_graphs
        applied.plan = replace(applied.plan, cuda_graphs=graphs)

    def drop(self, applied: Applied) -> None:
        """Drops compiled blocks too."""
        applied.plan = applied.plan.not_compiled()


SETTING = CompileSetting()
