"""Sets the precision of Lightning's Trainer as requested, if the script does not.

Batches are split inside the step, where the loss sees the whole batch, and not by
`accumulate_grad_batches`, which would weight masked losses wrongly.
"""

import functools
import sys
from typing import Any

from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.run.decision_log import DecisionLog

LIGHTNING = "lightning precision"
_MODULES = ("pytorch_lightning.trainer.trainer", "lightning.pytorch.trainer.trainer")
_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def watch(wishes: RequestedSettings, explanation: DecisionLog) -> None:
    for name in _MODULES:
        when_imported(name, functools.partial(_adapt, name, wishes, explanation))


def _adapt(module: str, wishes: RequestedSettings, explanation: DecisionLog) -> None:
    kind: Any = sys.modules[module].Trainer
    plain: Any = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        precision = chosen_precision(kwargs, wishes, explanation)
        if precision is None:
            plain(self, *args, **kwargs)
            return
        try:
            plain(self, *args, **{**kwargs, "precision": precision})
        except (ValueError, RuntimeError) as error:
            plain(self, *args, **kwargs)
            explanation.skipped(LIGHTNING, f"{precision}: {error}")
            return
        explanation.applied(LIGHTNING, f"{precision}, as asked for")

    kind.__init__ = __init__


def chosen_precision(
    keywords: dict[str, Any], wishes: RequestedSettings, explanation: DecisionLog
) -> str | None:
    """The value for `precision`, or None to leave it unchanged."""
    if wishes.mixed_precision is None:
        return None
    if keywords.get("precision") is not None or keywords.get("plugins"):
        explanation.skipped(LIGHTNING, "the script chooses it itself")
        return None
    return _PRECISIONS[wishes.mixed_precision]
