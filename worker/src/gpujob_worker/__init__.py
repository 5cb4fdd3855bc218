"""Runs a training script: injects settings, measures, reports, saves checkpoints and resumes.

`gpujob-run -- python train.py` needs no change in the script. For exact resumption and for
splitting any loss there is a small interface, `gpujob_worker.prepare`. `gpujob_worker.serve`
answers requests with a model. torch is imported only when it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # even `typing` is imported only if something trains
    from typing import Any

    from gpujob_worker.resume.training_job import Job, prepare
    from gpujob_worker.serving.batched import Batched, batched
    from gpujob_worker.serving.serve import serve

__all__ = ["Batched", "Job", "batched", "prepare", "serve"]

_MODULES = {
    "Batched": "serving.batched",
    "Job": "resume.training_job",
    "batched": "serving.batched",
    "prepare": "resume.training_job",
    "serve": "serving.serve",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"gpujob_worker.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
