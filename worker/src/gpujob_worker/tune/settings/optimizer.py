"""The fused kernel of optimizers, measured on copies."""

from typing import Any

from gpujob_worker.inject.fused_optimizer import restore_optimizer, use_fused
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Setting, Target


class OptimizerSetting(Setting):
    NAME = "optimizer"
    ITEM = "fused optimizer"
    FIELDS = ("fused_optimizer", "optimizers_judged")
    ORDER = 80
    SAID_WITHOUT_ROOT = False

    def tuned(self, applied: Applied) -> dict[str, Any]:
        fused = applied.fused and not applied.fused_here_only
        return {
            "fused_optimizer": fused,
            "optimizers_judged": applied.optimizers_judged if fused else 1,
        }

    def chosen(self, applied: Applied) -> bool:
        return applied.fused

    def drop(self, applied: Applied) -> None:
        applied.fused = applied.fused_here_only = False
        applied.optimizers_judged = 1

    def apply(self, target: Target) -> None:
        if target.optimizer is not None:
            use_fused(target.optimizer, True)

    def undo(self, target: Target) -> None:
        if target.optimizer is not None:
            restore_optimizer(target.optimizer)


SETTING = OptimizerSetting()
