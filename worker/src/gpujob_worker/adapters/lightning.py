"""Sets the precision of Lightning's Trainer as requested, if the script does not.

Batches are split inside the step, where the loss sees the whole batch. `accumulate_grad_batches`
would weight masked losses wrongly.
"""

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.run.decision_log import DecisionLog

LIGHTNING = "lightning precision"
_MODULES = ("pytorch_lightning.trainer.trainer", "lightning.pytorch.trainer.trainer")
_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def watch(wishes: RequestedSettings, log: DecisionLog) -> None:
    for name in _MODULES:
        when_imported(name, functools.partial(_adapt, name, wishes, log))


def _adapt(module: str, wishes: RequestedSettings, log: DecisionLog) -> None:
    kind: Any = sys.modules[module].Trainer
    plain: Any = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        precision = chosen_precision(kwargs, wishes, log)
        if precision is None:
            plain(self, *args, **kwargs)
            return
        try:
            plain(self, *args, **{**kwargs, "precision": precision})
            refusal = launch_refusal(self, os.environ)
        except (ValueError, RuntimeError) as error:
            refusal = str(error)
        if refusal is None:
            log.applied(LIGHTNING, f"{precision}, as asked for")
            return
        plain(self, *args, **kwargs)
        log.skipped(LIGHTNING, f"{precision}: {refusal}")

    kind.__init__ = __init__


def launch_refusal(trainer: Any, environ: Mapping[str, str]) -> str | None:
    """Returns why a process must not choose alone: its group with other processes does not exist
    yet.

    If a launcher made all processes, it set their variables, and each follows the same settings.
    """
    processes = getattr(trainer, "num_devices", 1) * getattr(trainer, "num_nodes", 1)
    if processes == 1 or {"RANK", "WORLD_SIZE"} <= set(environ):
        return None
    return f"Lightning starts {processes} processes, which cannot agree before they are there"


def chosen_precision(
    keywords: dict[str, Any], wishes: RequestedSettings, log: DecisionLog
) -> str | None:
    """Returns the value for `precision`, or None to leave it unchanged."""
    if wishes.mixed_precision is None:
        return None
    if keywords.get("precision") is not None or keywords.get("plugins"):
        log.skipped(LIGHTNING, "the script chooses it itself")
        return None
    return _PRECISIONS[wishes.mixed_precision]
